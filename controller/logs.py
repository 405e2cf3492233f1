"""Structured log lines on stderr: one JSON object each."""

from __future__ import annotations

import json
import logging
import time


class JsonLines(logging.Formatter):
    """``{"t": CLOCK_MONOTONIC seconds, "level", "logger", "message", …fields of the record}``."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "t": round(time.monotonic(), 6),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send every log line of this process to stderr from this level on (``debug`` … ``error``)."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # One line per request of our own polling would drown the rest.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("httpcore").setLevel(logging.WARNING)
