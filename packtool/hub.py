"""The Hugging Face hub: its clients, kept from telling addresses that may hold a password."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARIES = (
    *("aiohttp", "datasets", "filelock", "fsspec", "hf_xet", "httpcore", "httpcore2", "httpx", "httpx2"),
    *("huggingface_hub", "requests", "urllib3"),
)


@contextmanager
def quiet_clients() -> Iterator[None]:
    """Let the libraries that fetch from the hub log nothing and warn of nothing; what they raise is for the caller.

    They must have been imported before: their loggers are settled then.
    """
    loggers = [logging.getLogger(name) for name in _loggers()]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _loggers() -> list[str]:
    """Those of the libraries, and those below them that have a level of their own."""
    known = logging.getLogger().manager.loggerDict
    below = tuple(f"{library}." for library in _LIBRARIES)
    levelled = (name for name, logger in list(known.items()) if isinstance(logger, logging.Logger) and logger.level)
    return [*_LIBRARIES, *(name for name in levelled if name.startswith(below))]
