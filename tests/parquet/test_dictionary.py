"""The longest entry of a dictionary, whatever it is compressed with."""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packtool.parquet import dictionary
from packtool.parquet.dictionary import longest_entry
from packtool.parquet.footer import read_row_groups


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "zstd", "brotli", "lz4"])
def test_the_longest_entry_is_found(tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a", "é" * 70, "", "b" * 99, "a"] * 50
    table = pa.table({"text": texts, "plain": texts})
    pq.write_table(table, tmp_path / "a.parquet", compression=codec, use_dictionary=["text"])
    data = (tmp_path / "a.parquet").read_bytes()

    def read(start: int, length: int) -> bytes:
        return data[start : start + length]

    [group] = read_row_groups(read, len(data))
    assert [longest_entry(read, chunk) for chunk in group.chunks] == [140, 0]
    monkeypatch.setattr(dictionary, "_MOST_ENTRIES", 3)
    assert longest_entry(read, group.chunks[0]) == 4 * 4 + 1 + 140 + 99


def test_a_dictionary_that_ends_early_is_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["abc", "def"]}), tmp_path / "a.parquet", compression="none")
    data = (tmp_path / "a.parquet").read_bytes().replace(b"\x03\x00\x00\x00abc", b"\xff\xff\x00\x00abc")
    [group] = read_row_groups(lambda start, length: data[start : start + length], len(data))
    with pytest.raises(ValueError, match="its dictionary ends early"):
        longest_entry(lambda start, length: data[start : start + length], group.chunks[0])
