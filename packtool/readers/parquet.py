"""Parquet files become units of consecutive whole row groups, and units become records."""

import hashlib
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packtool.errors import Refusal
from packtool.parquet.dictionary import longest_entry
from packtool.parquet.footer import RowGroup, read_row_groups
from packtool.parquet.levels import LongestRow, longest_row
from packtool.parquet.pages import ChunkSize, chunk_size
from packtool.readers.columns import record_lists, rows_at_once
from packtool.readers.parsing import too_large
from packtool.readers.units import Block, Record, Unit, changed, damaged, identity, opened, read_exactly
from packtool.sources import Source

_BLOCK = 1 << 20
_HELD = 1 << 28
"""About how many bytes of rows may be decoded at once."""


@dataclass(frozen=True, slots=True)
class ParquetUnit(Unit):
    """Consecutive row groups of a file."""

    first: int
    """Number of the first of them."""
    groups: tuple[RowGroup, ...]
    size: int
    """Of the whole file, in bytes, when it was cut."""
    max_record_bytes: int


def cut(source: Source, source_index: int, unit_bytes: int, max_record_bytes: int) -> Iterator[Unit]:
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
                max_record_bytes=max_record_bytes,
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
        with _opened(unit.path, unit.size) as (file, _), opened(unit.path) as raw:
            groups = enumerate(unit.groups, unit.first)
            lists = (self._group_records(file, raw, number, group) for number, group in groups)
            for records in chain.from_iterable(lists):
                taken = records[: self._rows - row]
                yield Block(np.arange(row, row + len(taken)), taken)
                row += len(taken)
                if row == self._rows:
                    break
        if self._read and identity(unit.path) != self._read:
            raise changed(unit.path)  # the digest may be of other rows

    def _group_records(
        self, file: pq.ParquetFile, raw: BinaryIO, number: int, group: RowGroup
    ) -> Iterator[list[Record | Refusal]]:
        """Those of a row group, as many at a time as ``_steps`` says, or fewer."""
        limit = self._unit.max_record_bytes
        place = f"row group {number}"
        columns = _selection(file.schema_arrow, self._columns)
        try:
            steps = _steps(file.schema, raw, group, columns, limit)
        except ValueError as error:
            raise damaged(self._unit.path, f"Parquet, {place}", str(error)) from None
        if group.rows == 1 and steps.in_lists > limit:
            yield [too_large(steps.in_lists, limit, b"all of them in lists")]  # not decoded
            return
        seen = 0
        with _faults_named(self._unit.path, place):
            if steps.dictionaries:
                file = _parquet_file(raw, metadata=file.metadata, read_dictionary=steps.dictionaries)
            batches = file.iter_batches(batch_size=steps.rows, row_groups=[number], columns=columns, use_threads=False)
            for batch in batches:
                seen += batch.num_rows
                if seen > group.rows:
                    break
                yield from record_lists(batch, self._columns, limit)
        if seen != group.rows:
            raise damaged(
                self._unit.path, f"Parquet, {place}", f"it has not the {group.rows} rows that the footer names"
            )

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
                hasher.update(f"{group.rows} {[chunk.length for chunk in group.chunks]}\n".encode())
                for start, length, *_ in group.chunks:
                    for at in range(start, start + length, _BLOCK):
                        want = min(_BLOCK, start + length - at)
                        data = read_exactly(raw, at, want)
                        if len(data) != want:
                            raise changed(unit.path)
                        hasher.update(data)
        return hasher.hexdigest()


_WIDTHS = {"BOOLEAN": 1, "INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8, "INT96": 8}


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A column of values, perhaps inside lists and structs."""

    path: str
    width: int | None
    """Bytes of a value; None: text."""
    deepest: int
    """Lists inside one another that it is in."""

    @property
    def in_list(self) -> bool:
        """Whether a row may have many values of it."""
        return self.deepest > 0


def _leaves(schema: pq.ParquetSchema, columns: list[str] | None) -> dict[int, _Leaf]:
    """Those that pyarrow reads where it is asked for ``columns``, by their numbers."""
    found = {}
    for number in range(len(schema.names)):
        leaf = schema.column(number)
        if columns is None or any(f"{leaf.path}.".startswith(f"{name}.") for name in columns):
            width = leaf.length if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" else _WIDTHS.get(leaf.physical_type)
            found[number] = _Leaf(leaf.path, width, leaf.max_repetition_level)
    return found


@dataclass(frozen=True, slots=True)
class _Steps:
    """How to decode a row group so that little of it is held at once."""

    rows: int
    """In one step."""
    in_lists: int
    """Bytes of the numbers in lists, in all rows."""
    dictionaries: list[str]
    """Columns whose few texts could stand for many: they stay numbers of entries until rows are looked at."""


def _steps(
    schema: pq.ParquetSchema, raw: BinaryIO, group: RowGroup, columns: list[str] | None, max_record_bytes: int
) -> _Steps:
    """How to decode a row group: few rows in one step where they may be large.

    Raises:
        ValueError: the row group does not agree with itself, or what is decoded at once in it is too large.
    """
    if len(group.chunks) != len(schema.names):
        raise ValueError(f"it has {len(group.chunks)} columns, and the schema {len(schema.names)}")
    held = max(_HELD, 2 * max_record_bytes)
    usual = most = most_of_row = in_lists = 0
    dictionaries = []
    for number, leaf in _leaves(schema, columns).items():
        chunk, longest = group.chunks[number], LongestRow(0, 0)
        try:
            size = chunk_size(partial(read_exactly, raw), chunk)
            _check(size, leaf, group.rows, held)
            if leaf.in_list and group.rows > 1 and _in_memory(leaf, size.values, size.page_bytes) > held:
                longest = longest_row(partial(read_exactly, raw), chunk, leaf.deepest)
            most_text = size.most_text
            if leaf.in_list and leaf.width is None and most_text > held:
                entry = longest_entry(partial(read_exactly, raw), chunk)
                most_text -= size.of_dictionary * (size.dictionary_bytes - min(entry, size.dictionary_bytes))
        except ValueError as error:
            raise ValueError(f"column {leaf.path}: {error}") from None
        numbers = size.values * (leaf.width or 0)
        if leaf.in_list and leaf.width is None and most_text > held:
            dictionaries.append(leaf.path)
            most_text = size.page_bytes
        usual += size.usual_text if leaf.width is None else numbers
        most += size.values * _LEVELS + (most_text if leaf.width is None else numbers)
        if leaf.in_list:
            in_lists += numbers
            most_of_row += _in_memory(leaf, longest.values, longest.page_bytes)
        else:
            most_of_row += size.longest_text if leaf.width is None else leaf.width
    if most_of_row > held and group.rows > 1:
        raise ValueError(
            f"one of its rows may take {most_of_row:,} bytes to read, more than {held:,}; leave that row out, or raise "
            "--max-record-bytes"
        )
    rows = rows_at_once(group.rows, usual)
    return _Steps(rows if most <= held else max(1, min(rows, held // max(1, most_of_row))), in_lists, dictionaries)


_ENTRY = 4  # bytes of its number
_LEVELS = 4  # bytes a value, for its depth in lists and whether it is null


def _in_memory(leaf: _Leaf, values: int, page_bytes: int) -> int:
    """At most, while texts that share entries of a dictionary are their numbers."""
    return values * (_LEVELS + (_ENTRY if leaf.width is None else leaf.width)) + (
        page_bytes if leaf.width is None else 0
    )


def _check(size: ChunkSize, leaf: _Leaf, rows: int, held: int) -> None:
    if leaf.in_list:
        if size.values < rows:
            raise ValueError(f"{size.values} values for {rows} rows")
    elif size.values != rows:
        raise ValueError(f"{size.values} values for {rows} rows")
    if size.rows is not None and size.rows != rows:
        raise ValueError(f"its pages have {size.rows} rows, and the footer says {rows}")
    if size.largest_page > held:
        raise ValueError(f"a page of {size.largest_page:,} bytes; write it anew, with pages of at most {held:,}")


def _selection(schema: pa.Schema, columns: Collection[str] | None) -> list[str] | None:
    """The columns to ask pyarrow for; None: all."""
    if columns is None:
        return None
    # without any, pyarrow takes the footer's word for the number of rows
    return [name for name in schema.names if name in columns] or schema.names[:1]


def _row_groups(path: Path, raw: BinaryIO, size: int) -> list[RowGroup]:
    try:
        return read_row_groups(partial(read_exactly, raw), size)
    except ValueError as error:
        raise damaged(path, "Parquet, footer", str(error)) from None


def _parquet_file(raw: BinaryIO, **options: Any) -> pq.ParquetFile:
    # buffered: a row group is read as it is decoded, never whole
    return pq.ParquetFile(raw, buffer_size=_BLOCK, pre_buffer=False, **options)


@contextmanager
def _opened(path: Path, size: int | None = None) -> Iterator[tuple[pq.ParquetFile, int]]:
    """The file with its footer read, and its size, which must be ``size`` where that is known."""
    with opened(path) as raw:
        now = os.fstat(raw.fileno()).st_size
        if size is not None and size != now:
            raise changed(path)
        with _faults_named(path, "footer"):
            file = _parquet_file(raw)
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
