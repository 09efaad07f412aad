"""What every reader agrees on: a work unit, which the parent process cuts, and its reader in a worker."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from packtool.errors import BadData, Refusal
from packtool.sources import shown

UNIT_BYTES = 8 << 20
"""About how much of a source one work unit holds. Units depend on the input alone, so this is no option."""


def unit_bytes_of(size: int) -> int:
    """How much of a source of ``size`` bytes one of its units holds: less where there would be few of them.

    Two workers share out five units of 8 MiB less evenly than ten of 4 MiB. Below 8 MiB one unit costs less than
    another process. Powers of two, so that a source that grows keeps its units for long.
    """
    if size <= UNIT_BYTES or size > 8 * UNIT_BYTES:
        return UNIT_BYTES
    return UNIT_BYTES // 2 if size > 4 * UNIT_BYTES else UNIT_BYTES // 4


BLOCK_BYTES = 1 << 20
"""About how much of a file of JSON a block of records takes up."""
MAX_RECORD_BYTES = 64 << 20
"""The default of ``--max-record-bytes``: of a line, or an element of an array, as it stands in the file; of a row of a
table, what its used columns hold."""

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """Records that follow one another, so many that little is done for each by itself."""

    rows: NDArray[np.int64]
    """int64 [n], zero-based inside the unit, rising."""
    records: Sequence[Record | Refusal]


@dataclass(frozen=True, slots=True)
class Unit:
    """A stretch of one source that a worker reads by itself. Picklable."""

    source: int
    """Index of its source in the run."""
    index: int
    """Its place among the units of its source, from 0 without gaps."""
    path: Path
    max_records: int | None
    """Read only so many records (``--limit``); None: all."""


class UnitReader(Protocol):
    """The content of one unit."""

    columnar: bool
    """True where the file has columns, so that a null inside a struct may stand for "not there"."""

    @property
    def digest(self) -> str:
        """sha256, as hex, of exactly the unit's content. May read; parses no record."""

    @property
    def rows(self) -> int:
        """Physical rows: lines with blank ones, elements of an array, rows of a table. Parses no record."""

    @property
    def size(self) -> int:
        """About how many bytes of the (decompressed) file it takes up; 0 where that cannot be told. For progress."""

    def count(self) -> int:
        """How many records there are, refused ones with them. Parses none."""

    def records(self) -> Iterator[tuple[int, Record | Refusal]]:
        """Each record, or why it is none, with its zero-based row inside the unit; no blank lines."""

    def blocks(self) -> Iterator[Block]:
        """The same, many at a time; a block is small, but for one large record in it."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """The file, open to be read; a fault of the system, now or while reading, names the file.

    Raises:
        BadData: it vanished, may not be read, or the disk gives an error.
    """
    try:
        with path.open("rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise BadData(f"{shown(path)}: {error.strerror or error}") from error


def read_exactly(file: BinaryIO, start: int, length: int) -> bytes:
    """``length`` bytes from ``start``, or fewer only where the file ends."""
    file.seek(start)
    pieces: list[bytes] = []
    while length > 0 and (piece := file.read(length)):
        pieces.append(piece)
        length -= len(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def identity(path: Path) -> tuple[int, int, int]:
    """What differs once a file was replaced or written to, unless somebody took care that it does not.

    Raises:
        BadData: it vanished.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise BadData(f"{shown(path)}: {error.strerror}") from None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


def damaged(path: Path, what: str, reason: str) -> BadData:
    """The error of a file that is not what its name says, or not whole.

    Args:
        path: the file.
        what: its kind, and where in it the damage is.
        reason: what the library that reads it says; the first line of it is shown.
    """
    line = reason.strip().splitlines()[0] if reason.strip() else "unknown"
    return BadData(f"{shown(path)}: damaged {what}: {shown(line)}")


def changed(path: Path) -> BadData:
    """The error of a file that is not what it was when the run began."""
    return BadData(f"{shown(path)} changed while it was read: run again once nothing writes to it")
