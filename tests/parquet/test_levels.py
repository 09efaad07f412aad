"""The longest row of a chunk against a slow count, and levels that are none."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.parquet.footer import read_row_groups
from packtool.parquet.levels import _Row, longest_row

rows = st.lists(
    st.one_of(st.none(), st.lists(st.just(1), max_size=40), st.integers(0, 3000).map(lambda n: [1] * n)),
    min_size=1,
    max_size=30,
)


def reading(data: bytes) -> Callable[[int, int], bytes]:
    return lambda start, length: data[start : start + length]


def values_of(element: Any) -> int:
    """Levels of an element: an empty or missing list is one."""
    return max(1, sum(map(values_of, element or ()))) if isinstance(element, list) or element is None else 1


@given(
    st.one_of(
        st.tuples(st.just(pa.list_(pa.int32())), rows),
        st.tuples(st.just(pa.list_(pa.list_(pa.int32()))), st.lists(rows, min_size=1, max_size=12)),
    ),
    st.sampled_from(["none", "snappy", "gzip", "zstd", "brotli", "lz4"]),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from([1, 1 << 20]),
)
def test_the_longest_row_is_that_of_a_slow_count(
    tmp_path_factory: pytest.TempPathFactory, made: tuple[pa.DataType, list[Any]], codec: str, version: str, page: int
) -> None:
    kind, lists = made
    path = Path(tmp_path_factory.getbasetemp() / "levels.parquet")
    table = pa.table({"ids": pa.array(lists, kind)})
    pq.write_table(table, path, compression=codec, data_page_version=version, data_page_size=page, write_batch_size=5)
    data = path.read_bytes()
    [group] = read_row_groups(reading(data), len(data))
    deepest = pq.ParquetFile(path).schema.column(0).max_repetition_level
    longest = longest_row(reading(data), group.chunks[0], deepest)
    assert longest.values == max(map(values_of, lists))
    assert longest.page_bytes > 0


@given(st.binary(max_size=40), st.integers(1, 10_000), st.integers(1, 3))
def test_any_bytes_are_levels_or_a_value_error(levels: bytes, values: int, width: int) -> None:
    row = _Row()
    try:
        row.add(levels, values, width)
    except ValueError:
        return
    assert row.longest + row.length <= values or row.begun
    assert max(row.longest, row.length) <= values
