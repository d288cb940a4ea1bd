# SPDX-License-Identifier: Apache-2.0

"""What goes to standard error: log lines and messages, as text, or each as one JSON object.

As text, some lines stand alone: ``listening ...`` and ``ready``, for which programs wait, and those of --log-queries.
"""

from __future__ import annotations

import logging
import sys
import threading
from contextlib import suppress
from types import TracebackType
from typing import TextIO

from locator.printable import as_line, json_text
from locator.times import time_text

LOGGER = "topodns"

log = logging.getLogger(LOGGER)


def set_up_logging(log_format: str, level: str = "info") -> None:
    """Log to standard error in a format, "text" or "json", and from a level on."""
    handler = _StandardError(sys.stderr)
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


class _StandardError(logging.StreamHandler[TextIO]):
    """Writes lines; of a record that cannot be written, one that says why."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is that of the standard library
        text, error = "a log call is wrong: %r: %r", sys.exception()
        instead = log.makeRecord(LOGGER, logging.ERROR, __file__, 0, text, (record.msg, error), None)
        with suppress(OSError, ValueError):  # of a stream that is full, broken or closed, nobody can be told
            self.stream.write(self.format(instead) + self.terminator)
            self.flush()


class _TextLines(logging.Formatter):
    """A line for each record, whatever its message holds; the lines of a traceback are indented.

    ``extra={"alone": TEXT}`` of a log call is the whole line, which is printable.
    """

    def format(self, record: logging.LogRecord) -> str:
        alone: str | None = getattr(record, "alone", None)
        if alone is not None:
            return alone
        lines = [f"{time_text(record.created)} {record.levelname} {record.getMessage()}"]
        if record.exc_info:
            lines += [f"  {line}" for line in self.formatException(record.exc_info).split("\n")]
        return "\n".join(map(as_line, lines))


class _JsonLines(logging.Formatter):
    """One JSON object per line; ``extra={"fields": {...}}`` of a log call adds fields."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": time_text(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": as_line(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            fields["exception"] = "\n".join(map(as_line, self.formatException(record.exc_info).split("\n")))
        return json_text(fields)


def _log_exception(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    log.critical("internal error: %r", error, exc_info=(kind, error, trace))


def _log_exception_of_a_thread(raised: threading.ExceptHookArgs) -> None:
    if raised.exc_value is not None:
        _log_exception(raised.exc_type, raised.exc_value, raised.exc_traceback)


def _log_unraisable(raised: sys.UnraisableHookArgs) -> None:
    error = raised.exc_value or raised.exc_type()
    log.error("%s %r: %r", raised.err_msg or "exception ignored in", raised.object, error, exc_info=error)
