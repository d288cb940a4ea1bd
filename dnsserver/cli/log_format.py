"""Log lines on standard error, as text or as one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys

from dnsserver.settings.fields import Settings

TIME_FORMAT = "%Y-%m-%dT%H:%M:%S%z"


def set_up_logging(settings: Settings) -> None:
    """Log to standard error in the format and from the level on that *settings* give."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)s %(message)s", TIME_FORMAT)
    handler.setFormatter(_JsonLines() if settings.log_format == "json" else text)
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("hypercorn").setLevel(logging.WARNING)  # it logs where it listens, and so does topodns


class _JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": self.formatTime(record, TIME_FORMAT),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)
