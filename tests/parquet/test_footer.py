"""The footer reader against pyarrow on whole files, and on bytes that are none."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.parquet.footer import RowGroup, row_groups

TABLE = pa.table(
    {
        "text": ["a", None, "b" * 100] * 100,
        "flag": [True, False, None] * 100,
        "messages": [[{"role": "user", "content": "x", "score": 0.5}]] * 300,
        "ids": pa.array([[1, 2], [], None] * 100, pa.list_(pa.int32())),
    }
)


def footer_of(path: Path) -> tuple[bytes, int]:
    """The footer of a file, and how many bytes stand before it."""
    data = path.read_bytes()
    end = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    return data[end:-8], end


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"use_dictionary": False, "compression": "none"},
        {"compression": "zstd", "data_page_version": "2.0", "write_statistics": False},
        {"write_page_index": True, "write_page_checksum": True, "sorting_columns": [pq.SortingColumn(0)]},
        {"row_group_size": 1},
        {"row_group_size": 1000},
    ],
    ids=str,
)
@pytest.mark.parametrize("rows", [0, 1, 300])
def test_row_groups_are_those_that_pyarrow_names(tmp_path: Path, options: dict[str, object], rows: int) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(TABLE.slice(0, rows), path, **({"row_group_size": 70} | options))
    metadata = pq.read_metadata(path)
    found = row_groups(*footer_of(path))
    assert len(found) == metadata.num_row_groups
    for number, group in enumerate(found):
        expected = metadata.row_group(number)
        columns = [expected.column(column) for column in range(expected.num_columns)]
        assert (group.rows, group.decoded_bytes) == (expected.num_rows, expected.total_byte_size)
        assert group.stored_bytes == sum(column.total_compressed_size for column in columns)
        for (start, length, values, _), column in zip(group.chunks, columns, strict=True):
            assert start == (column.dictionary_page_offset or column.data_page_offset)
            assert length == column.total_compressed_size
            assert values == column.num_values


@given(data=st.binary(max_size=200))
def test_any_bytes_are_row_groups_inside_the_file_or_a_value_error(data: bytes) -> None:
    try:
        groups = row_groups(data, 1000)
    except ValueError:
        groups = []
    assert all(isinstance(group, RowGroup) for group in groups)
    assert all(start + length <= 1000 for group in groups for start, length, *_ in group.chunks)


def test_a_row_group_outside_the_file_is_refused(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=100)
    raw, before = footer_of(tmp_path / "a.parquet")
    assert len(row_groups(raw, before)) == 3
    with pytest.raises(ValueError, match="row group 2 does not lie inside the file"):
        row_groups(raw, before - 10)


def number(value: int) -> bytes:
    """A positive number as Thrift writes it."""
    zigzag, written = value << 1, b""
    while zigzag > 127:
        written += bytes([zigzag & 127 | 128])
        zigzag >>= 7
    return written + bytes([zigzag])


def footer(rows: int, *groups: bytes) -> bytes:
    """A footer of row groups, fewer than 15."""
    return b"\x36" + number(rows) + b"\x19" + bytes([len(groups) << 4 | 12]) + b"".join(groups) + b"\x00"


def group(start: int, length: int, rows: int) -> bytes:
    """A row group of one column."""
    place = b"\x56" + number(rows) + b"\x26" + number(length) + b"\x26" + number(start) + b"\x00"
    return b"\x19\x1c\x3c" + place + b"\x00" + b"\x16" + number(0) + b"\x16" + number(rows) + b"\x00"


def test_row_groups_that_overlap_are_refused() -> None:
    # a small file could make endless work with them
    apart = footer(16, group(4, 400, 7), group(404, 500, 9))
    assert row_groups(apart, 1000) == [RowGroup(7, 0, ((4, 400, 7, 0),)), RowGroup(9, 0, ((404, 500, 9, 0),))]
    over = footer(16, group(4, 600, 7), group(4, 600, 9))
    with pytest.raises(ValueError, match="overlap"):
        row_groups(over, 1000)


def test_row_groups_have_as_many_rows_as_the_file() -> None:
    with pytest.raises(ValueError, match="the row groups have 16 rows together, and the file says 17"):
        row_groups(footer(17, group(4, 400, 7), group(404, 500, 9)), 1000)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"\x19",  # a field, and no value
        b"\x19" * 100_000,  # lists that stand for one another
        b"\x1c" * 100_000,  # structs inside one another
        b"\x18\xff\xff\xff\xff\x7f",  # text longer than the bytes
        b"\x16" + b"\xff" * 11 + b"\x00\x00",  # a number without an end
        b"\x1f\x00",  # a kind that there is none of
        b"\x49\xfc\xff\xff\xff\xff\xff\xff\xff\x7f",  # more row groups than the bytes can hold
    ],
)
def test_damage_is_a_value_error(damage: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        row_groups(damage, 1000)
