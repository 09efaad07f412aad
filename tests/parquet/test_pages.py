"""The headers of pages against what pyarrow wrote and reads, and on bytes that are none."""

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.parquet.footer import ColumnChunk, read_row_groups
from packtool.parquet.pages import chunk_size

LISTS = pa.list_(pa.int32())
TABLE = pa.table(
    {
        "number": range(3000),
        "text": pa.array(["a" * (row % 100) if row % 7 else None for row in range(3000)]),
        "ids": pa.array([list(range(row % 5)) if row % 11 else None for row in range(3000)], LISTS),
        "messages": [[{"role": "user", "content": f"text {row % 50}"}] * (row % 3) for row in range(3000)],
    }
)


def reading(data: bytes) -> Callable[[int, int], bytes]:
    return lambda start, length: data[start : start + length]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"compression": "zstd", "data_page_size": 100, "row_group_size": 700}], ids=str
)
def test_pages_have_the_values_of_the_chunk_and_at_least_the_bytes_of_its_texts(
    tmp_path: Path, version: str, dictionary: bool, options: dict[str, object]
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(
        TABLE, path, data_page_version=version, use_dictionary=dictionary, write_page_checksum=True, **options
    )
    data = path.read_bytes()
    first = 0
    for number, group in enumerate(read_row_groups(reading(data), len(data))):
        assert pq.ParquetFile(path).read_row_group(number).num_rows == group.rows
        rows = TABLE.slice(first, group.rows)
        first += group.rows
        sizes = [chunk_size(reading(data), chunk) for chunk in group.chunks]
        assert [size.values for size in sizes[:2]] == [group.rows] * 2
        assert sizes[2].values == sum(max(1, len(ids or ())) for ids in rows["ids"].to_pylist())
        assert {size.rows for size in sizes} == {group.rows if version == "2.0" else None}
        texts = [text or "" for text in rows["text"].to_pylist()]
        assert sizes[1].longest_text >= max(map(len, texts))
        assert sizes[1].most_text >= sizes[1].usual_text
        assert sizes[1].most_text >= sum(map(len, texts))


def test_a_text_in_use_a_thousand_times_is_counted_a_thousand_times(tmp_path: Path) -> None:
    text = pa.array(["x" * 1000] * 500)
    pq.write_table(pa.table({"text": text}), tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    [group] = read_row_groups(reading(data), len(data))
    size = chunk_size(reading(data), group.chunks[0])
    assert (size.usual_text, size.most_text, size.longest_text) == (500_000, 500_000, 1000)
    assert (size.of_dictionary, size.dictionary_bytes) == (500, 1000)


def test_statistics_longer_than_any_guess_are_passed_over(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x" * 3000]}), tmp_path / "a.parquet", use_dictionary=False)
    data = (tmp_path / "a.parquet").read_bytes()
    [group] = read_row_groups(reading(data), len(data))
    assert chunk_size(reading(data), group.chunks[0]).values == 1


@pytest.mark.parametrize("more", [-1, 1])
def test_a_footer_that_counts_otherwise_is_refused(tmp_path: Path, more: int) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet")
    data = (tmp_path / "a.parquet").read_bytes()
    [group] = read_row_groups(reading(data), len(data))
    for chunk in group.chunks:
        with pytest.raises(ValueError, match=f"pages have {chunk.values} values, and the footer says"):
            chunk_size(reading(data), chunk._replace(values=chunk.values + more))
        with pytest.raises(ValueError, match=r"."):
            chunk_size(reading(data), chunk._replace(length=chunk.length - 1))


@given(data=st.binary(max_size=300))
def test_any_bytes_are_pages_or_a_value_error(data: bytes) -> None:
    try:
        size = chunk_size(reading(data), ColumnChunk(0, len(data), 0, 0))
    except ValueError:
        return
    assert size.values == 0
