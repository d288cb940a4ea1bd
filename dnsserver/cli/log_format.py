"""What goes to standard error: log lines and messages, as text, or each as one JSON object.

Only the lines that programs wait for, ``listening ...`` and ``ready``, stand alone in either format.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from types import TracebackType

from locator.printable import as_line

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"
LOGGER = "topodns"

log = logging.getLogger(LOGGER)


def set_up_logging(log_format: str, level: str = "info") -> None:
    """Log to standard error in a format, "text" or "json", and from a level on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines() if log_format == "json" else _TextLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def catch_what_nobody_logs() -> None:
    """Log, from now on, the warnings of Python, and the exceptions that end the process or a thread."""
    logging.captureWarnings(True)
    sys.excepthook = _log_exception
    threading.excepthook = _log_exception_of_a_thread
    sys.unraisablehook = _log_unraisable


def say(text: str, level: int = logging.WARNING) -> None:
    """Print a message of a command: ``topodns: TEXT``, or its JSON object, whatever the level of the log is."""
    if not is_json():
        print(as_line(f"topodns: {text}"), file=sys.stderr)
        return
    for handler in logging.getLogger().handlers:
        handler.handle(log.makeRecord(LOGGER, level, __file__, 0, text, (), None))


def is_json() -> bool:
    """Whether log lines are JSON."""
    return any(isinstance(handler.formatter, _JsonLines) for handler in logging.getLogger().handlers)


class _TextLines(logging.Formatter):
    """A line for each record, whatever its message holds; the lines of a traceback are indented."""

    def format(self, record: logging.LogRecord) -> str:
        lines = [f"{self.formatTime(record, TIME_FORMAT)} {record.levelname} {record.getMessage()}"]
        if record.exc_info:
            lines += [f"  {line}" for line in self.formatException(record.exc_info).split("\n")]
        return "\n".join(map(as_line, lines))


class _JsonLines(logging.Formatter):
    """One JSON object per line; ``extra={"fields": {...}}`` of a log call adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record, TIME_FORMAT),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": as_line(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("internal error: %r", error, exc_info=(kind, error, trace))


def _log_exception_of_a_thread(raised: threading.ExceptHookArgs) -> None:
    if raised.exc_value is not None:
        _log_exception(raised.exc_type, raised.exc_value, raised.exc_traceback)


def _log_unraisable(raised: sys.UnraisableHookArgs) -> None:
    error = raised.exc_value or raised.exc_type()
    log.error("%s %r: %r", raised.err_msg or "exception ignored in", raised.object, error, exc_info=error)
