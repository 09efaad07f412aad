"""Sources become work units, in the parent process, and units become records, in a worker."""

from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import assert_never

import pyarrow as pa

from packtool.errors import Refusal
from packtool.readers import array, arrow, lines, parquet
from packtool.readers.units import MAX_RECORD_BYTES, UNIT_BYTES, Block, Record, Unit, UnitReader, unit_bytes_of
from packtool.sources import Compression, Kind, Source

__all__ = [
    "MAX_RECORD_BYTES",
    "UNIT_BYTES",
    "Block",
    "Record",
    "Unit",
    "UnitReader",
    "column_types",
    "cut_units",
    "head",
    "limit_units",
    "open_unit",
    "unit_bytes_of",
]


def cut_units(
    source: Source,
    source_index: int,
    *,
    unit_bytes: int | None = None,
    max_record_bytes: int = MAX_RECORD_BYTES,
) -> Iterator[Unit]:
    """Cut a source into units, in order and in bounded memory.

    Units depend on the source alone. Those of compressed files and of arrays carry their bytes, so no more
    of them should wait than workers have use for.

    Args:
        source: what to cut.
        source_index: its place among the sources of the run.
        unit_bytes: about how much goes into a unit; None: what suits a source of its size.
        max_record_bytes: a longer line, element or row is refused as ``too_large``.

    Raises:
        BadData: the file vanished, cannot be read, or is damaged; units before the fault have been given.
    """
    if unit_bytes is None:
        unit_bytes = unit_bytes_of(_size(source))
    match source.kind:
        case Kind.LINES if source.compression is Compression.NONE:
            return lines.cut_plain(source, source_index, unit_bytes, max_record_bytes)
        case Kind.LINES:
            return lines.cut_compressed(source, source_index, unit_bytes, max_record_bytes)
        case Kind.PARQUET:
            return parquet.cut(source, source_index, unit_bytes, max_record_bytes)
        case Kind.ARRAY:
            return array.cut(source, source_index, unit_bytes, max_record_bytes)
        case Kind.ARROW:
            return arrow.cut(source, source_index, unit_bytes, max_record_bytes)
        case unknown:
            assert_never(unknown)


def _size(source: Source) -> int:
    try:
        return source.path.stat().st_size
    except OSError:
        return 0  # whoever opens it says why


def limit_units(units: Iterator[Unit], limit: int) -> Iterator[Unit]:
    """Only the units with the first ``limit`` records; the last of them is cut off after its last record.

    Blank lines are no records, bad records are. Reads each unit (but parses no record) when it is asked for.

    Args:
        units: of all sources, in order.
        limit: at least 1.
    """
    for unit in units:
        count = open_unit(unit, ()).count()
        if count >= limit:
            yield replace(unit, max_records=limit)
            return
        limit -= count
        yield unit


def open_unit(unit: Unit, columns: Collection[str] | None = None) -> UnitReader:
    """Open a unit's content.

    Args:
        unit: from ``cut_units``, perhaps in another process.
        columns: the columns a record needs, where the file has columns; None: all.

    Raises:
        BadData: the file vanished, cannot be read, is damaged, or changed since it was cut.
    """
    match unit:
        case lines.LinesUnit() | lines.PayloadUnit():
            return lines.LinesReader(unit)
        case array.ArrayUnit():
            return array.ArrayReader(unit)
        case parquet.ParquetUnit():
            return parquet.ParquetReader(unit, columns)
        case arrow.ArrowUnit():
            return arrow.ArrowReader(unit, columns)
        case _:
            raise TypeError(f"no reader for {type(unit).__name__}")


def head(
    source: Source, n: int = 100, *, max_record_bytes: int = MAX_RECORD_BYTES
) -> list[tuple[int, Record | Refusal]]:
    """The first ``n`` records of a source, each with its zero-based row there; reads little more than those.

    Raises:
        BadData: as ``cut_units`` and ``open_unit``.
    """
    records: list[tuple[int, Record | Refusal]] = []
    first_row = 0
    if source.kind in (Kind.PARQUET, Kind.ARROW):
        max_record_bytes = max(max_record_bytes, MAX_RECORD_BYTES)  # a limit of used columns, and these are all
    for unit in cut_units(source, 0, max_record_bytes=max_record_bytes):
        reader = open_unit(unit)
        for row, record in reader.records():
            records.append((first_row + row, record))
            if len(records) >= n:
                return records
        first_row += reader.rows
    return records


def column_types(source: Source) -> dict[str, pa.DataType] | None:
    """Name and Arrow type of each column of a Parquet or Arrow file; None for JSON, which has none.

    Raises:
        BadData: the file cannot be read or is damaged.
    """
    match source.kind:
        case Kind.PARQUET:
            return parquet.column_types(source)
        case Kind.ARROW:
            return arrow.column_types(source)
        case _:
            return None
