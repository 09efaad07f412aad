"""PackedDataset against the rows as pyarrow reads them, and against folders that are not sound."""

import multiprocessing
import pickle
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from packtool.errors import BadData
from packtool.torch.dataset import BLANK, CACHED_ROW_GROUPS, PackedDataset
from tests import dataset_builder as builder
from tests import runs
from tests.torch.collators import first

KEYS = ("input_ids", "labels", "position_ids", "seq_lengths", "doc_ids")


def as_lists(pack: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    """A pack without torch."""
    return {name: values.tolist() for name, values in pack.items()}


def expected(folder: Path) -> list[dict[str, list[int]]]:
    """Every pack, read without packtool."""
    return [{name: row[name] for name in KEYS} for row in runs.rows(folder)]


def test_every_pack_is_the_row_of_the_shards(packed: Path) -> None:
    dataset = PackedDataset(packed)
    assert [as_lists(pack) for pack in dataset] == expected(packed)
    assert len(dataset) == len(expected(packed)) > CACHED_ROW_GROUPS * 4


def test_an_item_is_int64_tensors_under_the_names_of_the_contract(packed: Path) -> None:
    pack = PackedDataset(packed)[0]
    assert tuple(pack) == KEYS
    assert {values.dtype for values in pack.values()} == {torch.int64}
    assert {values.dim() for values in pack.values()} == {1}


def test_packs_are_found_in_any_order_and_from_the_end(packed: Path) -> None:
    dataset, rows = PackedDataset(packed), expected(packed)
    for index in (77, 3, -1, 40, -len(rows), 0, len(rows) - 1):
        assert as_lists(dataset[index]) == rows[index]
    for index in (len(rows), -len(rows) - 1, BLANK + 1):
        with pytest.raises(IndexError, match=f"a dataset of {len(rows)} packs"):
            dataset[index]


def test_a_relative_path_stays_right_when_the_folder_changes(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(packed.parent)
    dataset = PackedDataset(packed.name)
    monkeypatch.chdir(tmp_path)
    assert as_lists(dataset[5]) == expected(packed)[5]


def test_changing_an_item_does_not_change_the_next_reading(packed: Path) -> None:
    dataset = PackedDataset(packed)
    for values in dataset[2].values():
        values.zero_()
    assert as_lists(dataset[2]) == expected(packed)[2]


def test_row_groups_and_costs_are_those_of_the_packs(packed: Path) -> None:
    dataset, rows = PackedDataset(packed), expected(packed)
    groups = dataset.row_group_packs().tolist()
    assert sum(groups) == len(rows)
    assert max(groups) == 4, "the fixture has small row groups"
    assert len(groups) > CACHED_ROW_GROUPS
    costs = [sum(length**2 for length in row["seq_lengths"]) for row in rows]
    assert dataset.attention_costs().tolist() == costs


def test_no_more_row_groups_are_kept_than_the_cache_holds(packed: Path) -> None:
    dataset = PackedDataset(packed)
    kept = [(dataset[index], dataset._read.cache_info().currsize)[1] for index in range(len(dataset))]
    assert max(kept) == CACHED_ROW_GROUPS
    assert dataset._read.cache_info().misses == len(dataset.row_group_packs())


def test_no_shard_stays_open_between_two_reads(packed: Path) -> None:
    dataset = PackedDataset(packed)
    for index in range(len(dataset)):
        dataset[index]
    assert not [file.path for file in psutil.Process().open_files() if file.path.startswith(str(packed))]


def test_a_pickled_dataset_carries_no_packs_and_reads_the_same(packed: Path) -> None:
    dataset = PackedDataset(packed)
    before = len(pickle.dumps(dataset))
    dataset.row_group_packs()
    for index in range(len(dataset)):
        dataset[index]
    raw = pickle.dumps(dataset)
    assert len(raw) < before + 4096
    assert [as_lists(pack) for pack in pickle.loads(raw)] == expected(packed)


def test_threads_may_share_a_dataset(packed: Path) -> None:
    dataset, rows = PackedDataset(packed), expected(packed)
    indices = [index * 29 % len(rows) for index in range(4 * len(rows))]
    with ThreadPoolExecutor(4) as pool:
        assert [as_lists(pack) for pack in pool.map(dataset.__getitem__, indices)] == [rows[i] for i in indices]


def test_positions_are_those_of_the_boundaries_whatever_the_column_says(tmp_path: Path) -> None:
    builder.make_dataset(tmp_path / "out", builder.sample())
    before = [as_lists(pack) for pack in PackedDataset(tmp_path / "out")]

    def spoil(columns: dict[str, list[int]]) -> None:
        columns["position_ids"] = list(range(len(columns["position_ids"])))

    builder.change_shards(tmp_path / "out", spoil)
    builder.remake(tmp_path / "out")
    assert [as_lists(pack) for pack in PackedDataset(tmp_path / "out")] == before
    assert [pack["position_ids"] for pack in before] == [
        [position for length in pack["seq_lengths"] for position in range(length)] for pack in before
    ]


def test_a_fork_reads_what_its_parent_reads_with_threads(packed: Path) -> None:
    dataset = PackedDataset(packed)
    dataset[0]  # the threads that decode are running

    def read() -> None:
        assert [as_lists(dataset[number]) for number in range(len(dataset))] == expected(packed)

    child = multiprocessing.get_context("fork").Process(target=read)
    child.start()
    child.join(60)
    child.kill()  # of one that hangs
    child.join()
    assert child.exitcode == 0


@pytest.mark.parametrize(("method", "workers"), [("fork", 2), ("spawn", 1)])
def test_workers_read_the_same_however_they_start(packed: Path, method: str, workers: int) -> None:
    dataset, rows = PackedDataset(packed), expected(packed)
    dataset[0]  # a worker that is forked finds what is cached here
    loader = DataLoader(dataset, num_workers=workers, collate_fn=first, multiprocessing_context=method)
    assert [as_lists(pack) for pack in loader] == rows
    assert as_lists(dataset[1]) == rows[1]


def test_the_blank_pack_is_one_segment_that_trains_nothing(packed: Path) -> None:
    dataset = PackedDataset(packed)
    blank = as_lists(dataset[BLANK])
    size = dataset.max_length
    assert tuple(blank) == KEYS
    assert blank["labels"] == [-100] * size
    assert blank["position_ids"] == list(range(size))
    assert (blank["seq_lengths"], blank["doc_ids"]) == ([size], [-1])
    assert set(blank["input_ids"]) == {dataset.manifest.tokenizer.pad_id}


def test_a_padded_dataset_keeps_its_padding_as_a_segment(tmp_path: Path) -> None:
    builder.make_dataset(tmp_path / "out", builder.sample(pad=True))
    dataset = PackedDataset(tmp_path / "out")
    assert [as_lists(pack) for pack in dataset] == expected(tmp_path / "out")
    assert {len(pack["input_ids"]) for pack in dataset} == {16}
    assert dataset.max_segments == 4 >= max(len(pack["seq_lengths"]) for pack in dataset)


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two shards made by hand."""
    builder.make_dataset(tmp_path / "out", builder.sample())
    return tmp_path / "out"


def test_a_folder_without_a_manifest_is_refused(small: Path, tmp_path: Path) -> None:
    (small / "manifest.json").unlink()
    with pytest.raises(BadData, match=r"not a packed dataset: no manifest\.json in it"):
        PackedDataset(small)
    with pytest.raises(BadData, match="no such folder"):
        PackedDataset(tmp_path / "nowhere")


def test_a_missing_shard_is_refused(small: Path) -> None:
    (small / "train-00001-of-00002.parquet").unlink()
    with pytest.raises(BadData, match=r"train-00001-of-00002\.parquet: listed in the manifest, but cannot be found"):
        PackedDataset(small)


def test_a_shard_of_another_size_is_refused(small: Path) -> None:
    with (small / "train-00000-of-00002.parquet").open("ab") as file:
        file.write(b"\0")
    with pytest.raises(BadData, match=r"train-00000-of-00002\.parquet: \d+ bytes, but the manifest says \d+"):
        PackedDataset(small)


def test_a_shard_that_is_a_link_is_refused(small: Path, tmp_path: Path) -> None:
    name = "train-00000-of-00002.parquet"
    shutil.move(small / name, tmp_path / name)
    (small / name).symlink_to(tmp_path / name)
    with pytest.raises(BadData, match="a link"):
        PackedDataset(small)


def test_packs_that_the_manifest_counts_otherwise_are_refused(small: Path) -> None:
    builder.change_manifest(small, lambda values: values.update(packs=11))
    with pytest.raises(BadData, match="the shards hold 10 packs, but the manifest says 11"):
        PackedDataset(small)

    def move_one(values: dict[str, Any]) -> None:
        values["packs"] = 10
        values["shards"][0]["packs"] -= 1
        values["shards"][1]["packs"] += 1

    builder.change_manifest(small, move_one)
    dataset = PackedDataset(small)
    for use in (lambda: dataset[0], dataset.row_group_packs, dataset.attention_costs):
        with pytest.raises(BadData, match=r"train-00000.*: 5 packs, but the manifest says 4"):
            use()


def test_a_damaged_page_is_an_error_that_names_the_shard(small: Path) -> None:
    path = small / "train-00000-of-00002.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:60] = bytes(56)
    path.write_bytes(raw)
    with pytest.raises(BadData, match=r"train-00000-of-00002\.parquet: row group 0 is damaged"):
        PackedDataset(small)[0]


def test_a_footer_that_counts_otherwise_is_refused(small: Path) -> None:
    path = small / "train-00000-of-00002.parquet"
    raw, rows, refused = path.read_bytes(), expected(small), 0
    footer = len(raw) - 8 - int.from_bytes(raw[-8:-4], "little")
    # A count of 5 is these two bytes: of the file's packs, of its row group's, or of something else.
    for place in [place for place in range(footer, len(raw)) if raw.startswith(b"\x16\x0a", place)]:
        for count in (b"\x08", b"\x0c"):
            path.write_bytes(raw[: place + 1] + count + raw[place + 2 :])
            dataset = PackedDataset(small)
            try:
                packs = [as_lists(dataset[number]) for number in range(len(dataset))]
            except BadData as error:
                refused += str(path) in str(error)
            else:
                assert packs == rows
    assert refused >= 4


@given(
    flips=st.lists(st.tuples(st.integers(1, 1 << 20), st.integers(0, 7)), min_size=1, max_size=4),
    in_footer=st.booleans(),
)
def test_flipped_bits_give_packs_or_an_error_that_names_the_shard(
    flips: list[tuple[int, int]], in_footer: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("flipped") / "out"
    builder.make_dataset(folder, builder.sample())
    path = folder / "train-00000-of-00002.parquet"
    raw = bytearray(path.read_bytes())
    reach = int.from_bytes(raw[-8:-4], "little") + 8 if in_footer else len(raw)
    for place, bit in flips:
        raw[-1 - place % reach] ^= 1 << bit
    path.write_bytes(raw)
    dataset = PackedDataset(folder)
    uses: list[Callable[[], object]] = [lambda: [dataset[n] for n in range(len(dataset))], dataset.attention_costs]
    said = []
    for use in uses:
        try:
            use()
        except BadData as error:
            said.append(str(error))
    assert all(str(path) in each and "\n" not in each for each in said)


def split(columns: dict[str, list[int]]) -> None:
    """One segment into an empty one and itself."""
    columns["seq_lengths"].insert(1, 0)
    columns["doc_ids"].insert(1, 0)
    columns["doc_offsets"].insert(1, 0)
    columns["pack_segments"][0] += 1


def shorten(columns: dict[str, list[int]]) -> None:
    """A segment that leaves a token to nobody."""
    columns["seq_lengths"][2] -= 1


@pytest.mark.parametrize(("change", "pack"), [(split, 0), (shorten, 1)])
def test_boundaries_that_do_not_fit_are_refused(
    small: Path, change: Callable[[dict[str, list[int]]], None], pack: int
) -> None:
    builder.change_shards(small, change)
    builder.remake(small)
    with pytest.raises(BadData, match=rf"train-00000.*: pack {pack}: the segments do not fit the pack"):
        PackedDataset(small)[3]


def test_a_pack_over_max_length_is_refused(small: Path) -> None:
    builder.change_manifest(small, lambda values: values.update(max_length=15))
    with pytest.raises(BadData, match=r"train-00000.*: pack 0: the segments do not fit the pack"):
        PackedDataset(small)[4]
