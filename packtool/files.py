"""Files that are either whole or not there: write under a temporary name, fsync, rename, fsync the folder."""

import hashlib
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

TEMPORARY_MARK = ".tmp-"
"""Every unfinished file or folder carries this in its name; nothing finished does."""


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of the system that names no file name this one: those of read, write and fsync do not.

    Raises:
        OSError: of the block, with a ``filename``.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        # Other libraries give the number of the error, but a text of their own.
        reason = os.strerror(error.errno) if error.errno else str(error).partition("\n")[0]
        raise type(error)(error.errno, reason, str(path)) from error


def fsync_folder(folder: Path) -> None:
    """Make the renames done in ``folder`` survive a power cut."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with naming(folder):
            os.fsync(handle)
    finally:
        os.close(handle)


def temporary_name(path: Path) -> Path:
    """A new name beside ``path`` that nobody else uses, on this host or another: a folder may be shared."""
    return path.with_name(f"{path.name}{TEMPORARY_MARK}{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for writing that appears as ``path`` only when the block ends well.

    On an exception nothing is left behind. An existing ``path`` is replaced.
    """
    temporary = temporary_name(path)
    try:
        with naming(path), temporary.open("wb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        fsync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Give a folder to fill that appears as ``path`` only when the block ends well.

    The caller fsyncs the files it writes (``write_synced`` does). If ``path`` exists by then, another task
    made the same thing: it stays, and ours goes.
    """
    temporary = temporary_name(path)
    temporary.mkdir(parents=True)
    try:
        yield temporary
        fsync_folder(temporary)
        try:
            temporary.rename(path)
        except OSError:
            if not path.is_dir():
                raise
            shutil.rmtree(temporary)
        fsync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def write_synced(path: Path, *parts: bytes | memoryview) -> None:
    """Write ``parts`` one after another to ``path`` and fsync it."""
    with naming(path), path.open("wb") as handle:
        for part in parts:
            handle.write(part)
        handle.flush()
        os.fsync(handle.fileno())


def write_atomic(path: Path, content: bytes) -> None:
    """Write ``content`` as the whole of ``path``, or leave what was there."""
    with atomic_file(path) as handle:
        handle.write(content)


class Unreadable(Exception):
    """A file of packtool's own is not what was written; the text says what it is instead, without its name."""


class Missing(Unreadable):
    """It is not there."""


OWN_BYTES = 256 << 20
"""Unless a caller says otherwise, a file of packtool's own is smaller; so is the manifest of 99,999 shards."""


def read_own(path: Path, most: int = OWN_BYTES) -> bytes:
    """The content of a file that packtool wrote, or that somebody put in its place: a link is not followed.

    Raises:
        Missing: there is none.
        Unreadable: it is no plain file, has more than ``most`` bytes, or cannot be read.
    """
    try:
        # Opening a pipe would wait for somebody to write to it.
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise Missing("not there") from None
    except OSError as error:
        raise Unreadable("a link" if path.is_symlink() else f"cannot be read: {error.strerror}") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise Unreadable("not a regular file")
        if found.st_size > most:
            raise Unreadable(f"has {found.st_size:,} bytes, more than {most:,}")
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(most)
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None
    finally:
        os.close(handle)


def parse_own(raw: bytes) -> Any:
    """The JSON in what packtool wrote, or somebody else did.

    Raises:
        Unreadable: it is none, or nested too deep.
    """
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Unreadable(f"not JSON: {error}") from None


def read_json(path: Path, most: int = OWN_BYTES) -> Any:
    """``parse_own`` of ``read_own``."""
    return parse_own(read_own(path, most))


def sha256_of(path: Path) -> str:
    """The sha256 of a file, as hex."""
    with naming(path), path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()
