"""Parquet files become units of consecutive whole row groups, and units become records."""

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packtool.errors import Refusal
from packtool.readers.columns import batch_records, rows_at_once
from packtool.readers.parquet_footer import RowGroup, row_groups
from packtool.readers.units import Block, Record, Unit, changed, damaged, identity, opened, read_exactly
from packtool.sources import Source

_BLOCK = 1 << 20
_TAIL = 8  # the length of the footer, and the mark that ends the file


@dataclass(frozen=True, slots=True)
class ParquetUnit(Unit):
    """Consecutive row groups of a file."""

    first: int
    """Number of the first of them."""
    groups: tuple[RowGroup, ...]
    size: int
    """Of the whole file, in bytes, when it was cut."""


def cut(source: Source, source_index: int, unit_bytes: int) -> Iterator[Unit]:
    """Cut a file by the compressed sizes of its row groups.

    Raises:
        BadData: its footer cannot be read.
    """
    with _opened(source.path) as (_, size), opened(source.path) as raw:
        groups = _row_groups(source.path, raw, size)
    index = first = taken = 0
    for last, group in enumerate(groups, 1):
        taken += group.stored_bytes
        if taken >= unit_bytes or last == len(groups):
            yield ParquetUnit(
                source=source_index,
                index=index,
                path=source.path,
                max_records=None,
                first=first,
                groups=tuple(groups[first:last]),
                size=size,
            )
            index, first, taken = index + 1, last, 0


def column_types(source: Source) -> dict[str, pa.DataType]:
    """Name and Arrow type of each column of a file.

    Raises:
        BadData: its footer cannot be read.
    """
    with _opened(source.path) as (file, _):
        schema = file.schema_arrow
        return dict(zip(schema.names, schema.types, strict=True))


class ParquetReader:
    """The rows of one unit."""

    columnar = True

    def __init__(self, unit: ParquetUnit, columns: Collection[str] | None) -> None:
        self._unit = unit
        self._columns = columns
        all_rows = sum(group.rows for group in unit.groups)
        self._rows = all_rows if unit.max_records is None else min(unit.max_records, all_rows)
        self._digest: str | None = None
        self._read: tuple[int, int, int] | None = None
        """The file as it was when the digest was made."""

    @property
    def digest(self) -> str:
        """sha256 of the columns' names and types, and of each row group's number of rows and bytes.

        With ``max_records``, of the row groups that hold those records, and of their number.
        """
        if self._digest is None:
            self._read = identity(self._unit.path)
            self._digest = self._hash()
        return self._digest

    @property
    def rows(self) -> int:
        """Rows of the table."""
        return self._rows

    @property
    def size(self) -> int:
        """Bytes of the row groups as stored."""
        return sum(group.stored_bytes for group in self._unit.groups)

    def count(self) -> int:
        """Every row is a record."""
        return self._rows

    def records(self) -> Iterator[tuple[int, Record | Refusal]]:
        """Each row, with the columns asked for that the file has."""
        for block in self.blocks():
            yield from zip(block.rows.tolist(), block.records, strict=True)

    def blocks(self) -> Iterator[Block]:
        """The same, as many at a time as are decoded at once."""
        unit = self._unit
        row = 0
        with _opened(unit.path, unit.size) as (file, _):
            groups = enumerate(unit.groups, unit.first)
            for batch in chain.from_iterable(_batches(unit.path, file, *group, self._columns) for group in groups):
                taken = batch.slice(0, self._rows - row)
                yield Block(np.arange(row, row + taken.num_rows), list(batch_records(taken, self._columns)))
                row += taken.num_rows
                if row == self._rows:
                    break
        if self._read and identity(unit.path) != self._read:
            raise changed(unit.path)  # the digest may be of other rows

    def _hash(self) -> str:
        unit = self._unit
        with _opened(unit.path, unit.size) as (file, _), opened(unit.path) as raw:
            schema = file.schema_arrow
            types = [(name, str(kind)) for name, kind in zip(schema.names, schema.types, strict=True)]
            header = f"parquet {types!r} {unit.max_records}\n"
            hasher = hashlib.sha256(header.encode("utf-8", "backslashreplace"))
            hashed = 0
            for group in unit.groups:
                if hashed >= self._rows:
                    break
                hashed += group.rows
                hasher.update(f"{group.rows} {[length for _, length in group.chunks]}\n".encode())
                for start, length in group.chunks:
                    for at in range(start, start + length, _BLOCK):
                        want = min(_BLOCK, start + length - at)
                        data = read_exactly(raw, at, want)
                        if len(data) != want:
                            raise changed(unit.path)
                        hasher.update(data)
        return hasher.hexdigest()


def _batches(
    path: Path, file: pq.ParquetFile, number: int, group: RowGroup, wanted: Collection[str] | None
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, as many at a time as ``rows_at_once`` says."""
    columns = _selection(file.schema_arrow, wanted)
    seen = 0
    with _faults_named(path, f"row group {number}"):
        batches = file.iter_batches(
            batch_size=rows_at_once(group.rows, group.decoded_bytes),
            row_groups=[number],
            columns=columns,
            use_threads=False,
        )
        for batch in batches:
            seen += batch.num_rows
            if seen > group.rows:
                break
            yield batch
    if seen != group.rows:
        raise damaged(path, f"Parquet, row group {number}", f"it has not the {group.rows} rows that the footer names")


def _selection(schema: pa.Schema, columns: Collection[str] | None) -> list[str] | None:
    """The columns to ask pyarrow for; None: all."""
    if columns is None:
        return None
    # without any, pyarrow takes the footer's word for the number of rows
    return [name for name in schema.names if name in columns] or schema.names[:1]


def _row_groups(path: Path, raw: BinaryIO, size: int) -> list[RowGroup]:
    end = size - _TAIL
    length = int.from_bytes(read_exactly(raw, end, 4), "little")
    footer = read_exactly(raw, end - length, length) if length <= end else b""
    try:
        return row_groups(footer, end - length)
    except ValueError as error:
        raise damaged(path, "Parquet, footer", str(error)) from None


@contextmanager
def _opened(path: Path, size: int | None = None) -> Iterator[tuple[pq.ParquetFile, int]]:
    """The file with its footer read, and its size, which must be ``size`` where that is known."""
    with opened(path) as raw:
        now = os.fstat(raw.fileno()).st_size
        if size is not None and size != now:
            raise changed(path)
        with _faults_named(path, "footer"):
            # buffered: a row group is read as it is decoded, never whole
            file = pq.ParquetFile(raw, buffer_size=_BLOCK, pre_buffer=False)
        with file:
            yield file, now


@contextmanager
def _faults_named(path: Path, place: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, OverflowError, UnicodeDecodeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # a fault of the system, which `opened` names
        raise damaged(path, f"Parquet, {place}", str(error)) from error
