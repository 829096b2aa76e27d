"""Log messages that a process needs to see only once."""

import logging
from functools import cache

log = logging.getLogger("midepoch")


@cache
def log_once(message: str, level: int = logging.WARNING) -> None:
    """Log a message the first time this process has it."""
    log.log(level, message)
