"""Panics of Rust in the libraries that tokenize: the exceptions they become, without Rust's own account of them."""

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def is_panic(error: BaseException) -> bool:
    """Whether an exception is a panic, which is no ``Exception`` and has a type of its own in each library."""
    return type(error).__name__ == "PanicException"


@contextmanager
def unseen_panics() -> Iterator[None]:
    """Let no panic in the block write to standard error: its words are in the exception.

    What others write there meanwhile is written after the block, unless that ends in a panic. Threads may be in such
    blocks at once.
    """
    panicked = False
    try:
        _ASIDE.begin()
        yield
    except BaseException as error:
        panicked = is_panic(error)
        raise
    finally:
        _ASIDE.end(panicked)


class _Aside:
    """Where standard error leads meanwhile: a file of this process and of this time alone, as workers are forked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._panicked = False
        self._standard_error = self._file = -1

    def begin(self) -> None:
        with self._lock:
            self._blocks += 1
            if self._blocks > 1:
                return
            with suppress(OSError):  # there is no standard error, or no file can be had
                self._standard_error = os.dup(2)
                self._file = _nameless_file()
                fcntl.fcntl(self._file, fcntl.F_SETFL, os.O_APPEND)  # threads write at once
                os.dup2(self._file, 2)

    def end(self, panicked: bool) -> None:
        with self._lock:
            self._blocks -= 1
            self._panicked |= panicked
            if self._blocks:
                return
            others = b""
            if self._file >= 0:
                os.dup2(self._standard_error, 2)
                if not self._panicked and (size := os.fstat(self._file).st_size):
                    others = os.pread(self._file, size, 0)
            for descriptor in (self._file, self._standard_error):
                if descriptor >= 0:
                    os.close(descriptor)
            self._standard_error = self._file = -1
            self._panicked = False
            with suppress(OSError):
                while others:  # before another block begins, whose file it would be written to
                    others = others[os.write(2, others) :]


def _nameless_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("packtool-stderr")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


_ASIDE = _Aside()
