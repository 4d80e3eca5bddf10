"""How every process writes its log: lines of text, or of JSON where SPEEDWELL_LOG_FORMAT is `json`."""

import json
import logging
import os
import shutil
import sys
import time
from logging.handlers import RotatingFileHandler
from pathlib import Path

import click

from speedwell.fs import tracing

OPTION = click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info",
                      show_default=True, envvar="SPEEDWELL_LOG_LEVEL", show_envvar=True)
FORMAT_VARIABLE = "SPEEDWELL_LOG_FORMAT"
MAX_BYTES = 64 << 20
"""A log that is larger is rotated; one older file is kept."""


class TextLines(logging.Formatter):
    """With the id of the request that a line is about."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        request = _request_of(record)
        return f"{line} [request {request}]" if request else line


class JsonLines(logging.Formatter):
    """An object a line: `time` (RFC 3339, UTC), `level`, `logger`, `message`; where there is one, `request` and
    `exception`."""

    converter = staticmethod(time.gmtime)
    default_time_format = "%Y-%m-%dT%H:%M:%S"
    default_msec_format = "%s.%03dZ"

    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": self.formatTime(record), "level": record.levelname.lower(), "logger": record.name,
                 "message": record.getMessage()}
        if request := _request_of(record):
            entry["request"] = request
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def _request_of(record: logging.LogRecord) -> str:
    """The current one, or what was given as `extra={"request": ...}`."""
    return getattr(record, "request", "") or tracing.request_id()


def rotate(log: str, kept: str) -> None:
    """Go on with an empty log. Who has it open to append to it, a child for example, notices nothing."""
    shutil.copyfile(log, kept)
    os.truncate(log, 0)


def configure(level: str = "info", file: Path | None = None) -> None:
    """Log to `file`, or to standard error; of libraries nothing below `info`: numba alone writes 80,000 lines when a
    controller starts. Does nothing where the process logs already."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        handler = rotating = RotatingFileHandler(file, maxBytes=MAX_BYTES, backupCount=1)
        rotating.rotator = rotate
    formatter: logging.Formatter = TextLines()
    if os.environ.get(FORMAT_VARIABLE) == "json":
        formatter = JsonLines()
    handler.setFormatter(formatter)
    wanted = logging.getLevelNamesMapping()[level.upper()]
    logging.basicConfig(level=max(wanted, logging.INFO), handlers=[handler])
    if handler in logging.getLogger().handlers:
        logging.getLogger("speedwell").setLevel(wanted)
