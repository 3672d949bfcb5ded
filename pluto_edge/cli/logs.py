"""The log of a command, on stderr: `-v` for people, `--log-json` for machines."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from pluto_edge._text import printable

LOGGERS = ("pluto_edge", "py.warnings")

log = logging.getLogger("pluto_edge")


def on() -> bool:
    """Whether a log is shown; then it has the errors, too."""
    return log.isEnabledFor(logging.INFO)


@contextmanager
def shown(verbose: int, as_json: bool) -> Iterator[None]:
    """Shows the log of the block; without either option only warnings are, as Python shows them."""
    if not verbose and not as_json:
        yield
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Json() if as_json else Text())
    loggers = [logging.getLogger(name) for name in LOGGERS]
    before = [(logger.level, logger.propagate) for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG if verbose > 1 else logging.INFO)
        logger.propagate = False
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        for logger, (level, propagate) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate


class Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        return f"{at} {record.levelname.lower():7} {printable(record.getMessage())}"


class Json(logging.Formatter):
    """One object a line; `fields` are what a record was given as `extra={"fields": ...}`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)
