"""The hub's clients say nothing while they are called, and what they want afterwards."""

import logging
import warnings

import pytest

from packtool.hub import quiet_clients

LOGGERS = ("datasets.load", "huggingface_hub.utils._http", "httpx", "urllib3.connectionpool", "filelock", "fsspec")


def test_nothing_is_logged_inside_and_everything_outside(capfd: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    below = logging.getLogger("datasets.load")
    logging.getLogger().addHandler(handler)
    below.setLevel(logging.DEBUG)
    try:
        levels = [logging.getLogger(name).level for name in LOGGERS]
        with quiet_clients(), warnings.catch_warnings(record=True) as warned:
            for name in LOGGERS:
                logging.getLogger(name).critical("secret")
            warnings.warn("secret", stacklevel=1)
            logging.getLogger("others").warning("heard")
        assert (capfd.readouterr().err, warned) == ("heard\n", [])
        assert [logging.getLogger(name).level for name in LOGGERS] == levels
        below.debug("heard again")
        assert capfd.readouterr().err == "heard again\n"
    finally:
        below.setLevel(logging.NOTSET)
        logging.getLogger().removeHandler(handler)


def test_an_error_ends_it(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="gone"), quiet_clients():
        raise ValueError("gone")
    assert logging.getLogger("httpx").level == logging.NOTSET
    assert capfd.readouterr().err == ""
