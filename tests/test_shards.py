"""Reading shards: what was written comes back, whole or only some columns of it."""

import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import BadData
from packtool.shards import (
    SCHEMA,
    SEGMENT_COLUMNS,
    TOKEN_COLUMNS,
    PackBatch,
    ShardWriter,
    check_row_group,
    open_shard,
    read_columns,
    read_layout,
    read_row_group,
)
from tests import dataset_builder as builder
from tests import runs

# Packs, each the lengths of its segments.
row_groups = st.lists(st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=5), min_size=1, max_size=6), min_size=1)


def made(packs: list[list[int]]) -> PackBatch:
    """Packs of these segments; every value tells its place and its column."""
    lengths = [length for pack in packs for length in pack]
    tokens, segments = np.arange(sum(lengths)), np.arange(len(lengths))
    return PackBatch(
        input_ids=(tokens * 7).astype(np.int32),
        labels=np.where(tokens % 3, -100, tokens * 7).astype(np.int32),
        position_ids=(tokens + 5).astype(np.int32),
        seq_lengths=np.array(lengths, dtype=np.int32),
        doc_ids=segments + (1 << 40),
        doc_offsets=(segments * 2).astype(np.int32),
        pack_tokens=np.array([sum(pack) for pack in packs], dtype=np.int32),
        pack_segments=np.array([len(pack) for pack in packs], dtype=np.int32),
    )


def assert_equal(found: PackBatch, expected: PackBatch) -> None:
    for name in (*SCHEMA.names, "pack_tokens", "pack_segments"):
        assert getattr(found, name).dtype == getattr(expected, name).dtype, name
        assert getattr(found, name).tolist() == getattr(expected, name).tolist(), name


@given(row_groups)
def test_row_groups_come_back_as_they_were_written(groups: list[list[list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard"
        with ShardWriter(path, "x") as writer:
            for packs in groups:
                writer.write(made(packs))
        found = list(runs.batches(path))
        assert len(found) == len(groups)
        with open_shard(path) as file:
            footer = file.metadata
        for number, packs in enumerate(groups):
            assert_equal(found[number], made(packs))
            with open_shard(path, footer) as file:
                assert_equal(read_row_group(path, file, number, 0), made(packs))


@given(
    row_groups,
    st.lists(st.sampled_from(SCHEMA.names), min_size=1, unique=True),
    st.booleans(),
)
def test_some_columns_are_the_same_as_in_the_whole(
    groups: list[list[list[int]]], names: list[str], use_threads: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "shard"
        with ShardWriter(path, "x") as writer:
            for packs in groups:
                writer.write(made(packs))
        with open_shard(path) as file:
            for number, packs in enumerate(groups):
                flat, counts = read_columns(path, file, number, 0, names, use_threads)
                whole = made(packs)
                assert set(flat) == set(counts) == set(names)
                for name in names:
                    assert flat[name].tolist() == getattr(whole, name).tolist()
                    kind = "pack_tokens" if name in TOKEN_COLUMNS else "pack_segments"
                    assert counts[name].tolist() == getattr(whole, kind).tolist()


@pytest.mark.parametrize("name", [TOKEN_COLUMNS[1], SEGMENT_COLUMNS[1]])
def test_uneven_lists_are_seen_among_the_columns_that_are_read(tmp_path: Path, name: str) -> None:
    table = made([[3, 1], [2], [4]]).to_arrow()
    rows = table.column(name).to_pylist()
    rows[1] = [*rows[1], 0]
    column = pa.array(rows, type=SCHEMA.field(name).type)
    path = tmp_path / "shard"
    pq.write_table(table.set_column(SCHEMA.names.index(name), name, column), path)
    first = TOKEN_COLUMNS[0] if name in TOKEN_COLUMNS else SEGMENT_COLUMNS[0]
    with open_shard(path) as file:
        assert set(read_columns(path, file, 0, 10, [first])[0]) == {first}
        with pytest.raises(BadData, match=rf"pack 11: {name} has \d entries, {first} has \d"):
            read_columns(path, file, 0, 10, [first, name])


def test_a_shard_whose_path_is_a_uri_is_written_to_that_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside = tmp_path / "outside"  # what the URI names
    outside.mkdir()
    monkeypatch.chdir(tmp_path)
    path = Path(f"file:{outside}") / "shard"
    path.parent.mkdir(parents=True)
    with ShardWriter(path, "x") as writer:
        writer.write(made([[3, 1], [2]]))
    assert list(outside.iterdir()) == []
    with open_shard(path) as file:
        assert read_row_group(path, file, 0, 0).packs == 2


def test_a_row_group_that_is_larger_than_packs_can_be_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "shard"
    with ShardWriter(path, "x") as writer:
        writer.write(made([[9] * 100]))
    layout = read_layout(path)
    check_row_group(path, layout, 0, 900)
    monkeypatch.setattr("packtool.shards.ROW_GROUP_TOKENS", 10)
    check_row_group(path, layout, 0, 890)
    with pytest.raises(BadData, match="row group 0: column input_ids says it has 900 values in pages of up to"):
        check_row_group(path, layout, 0, 889)
    monkeypatch.setattr("packtool.shards._LONGEST_READABLE", 889)
    with pytest.raises(BadData, match="pack again"):
        check_row_group(path, layout, 0, 2**31 - 1)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_row_group_whose_pages_do_not_agree_with_the_footer_is_refused(tmp_path: Path, version: str) -> None:
    # Sizes that say little of it: a run of one value takes a few bytes however long it is.
    path = tmp_path / "shard"
    pq.write_table(made([[3000], [3000]]).to_arrow(), path, data_page_version=version)
    layout = read_layout(path)
    check_row_group(path, layout, 0, 3000)
    for column, change in ((0, -1), (3, -1), (3, 1)):
        chunks = list(layout[0].chunks)
        chunks[column] = chunks[column]._replace(values=chunks[column].values + change)
        with pytest.raises(BadData, match="row group 0 is damaged: its pages have"):
            check_row_group(path, [replace(layout[0], chunks=tuple(chunks))], 0, 3000)
    with pytest.raises(BadData, match="row group 0 is damaged: column "):
        check_row_group(path, [replace(layout[0], rows=3)], 0, 3000)


def test_reading_a_shard_does_not_load_pandas(tmp_path: Path) -> None:
    builder.make_dataset(tmp_path / "out", builder.sample())
    code = f"""
import sys
from pathlib import Path
from packtool.shards import open_shard, read_row_group
path = Path({str(tmp_path / "out" / "train-00000-of-00002.parquet")!r})
print(read_row_group(path, open_shard(path), 0, 0).packs)
print([name for name in ("pandas", "pyarrow.compute", "torch") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["5", "[]"]
