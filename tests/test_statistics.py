"""Every statistic against the plainest way to count it, document by document and pack by pack."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool import BadData
from packtool.contract import IGNORED
from packtool.statistics import FILL_EDGES, DatasetStats, stats

from .dataset_builder import (
    Recipe,
    Stretch,
    batch_of,
    change_manifest,
    document,
    make_dataset,
    sample,
)


def expected(path: Path, recipe: Recipe) -> dict[str, Any]:
    """The statistics of a recipe, counted slowly."""
    packs, most = recipe.packs, recipe.max_length
    segments = [stretch for pack in packs for stretch in pack]
    size = {id(pack): sum(stretch.stop - stretch.start for stretch in pack) for pack in packs}
    tokens = sum(size.values())
    documents = {stretch.document.doc_id: len(stretch.document.ids) for stretch in segments}
    truncated = [stretch for stretch, reason in recipe.cuts if reason == "truncated"]
    trained = sum(label != IGNORED for label in batch_of(recipe, packs).labels.tolist())
    rows = []
    for length in documents.values():
        if truncated:
            rows.append(min(length, most))
        else:
            while length > most:
                rows.append(most)
                length -= most
            rows.append(length)
    longest = 0.0
    for length in range(1, most + 1):
        upto = sum(row <= length for row in rows) / len(rows)
        before = sum(row <= length - 1 for row in rows) / len(rows)
        longest += length * (upto**8 - before**8)
    counts = [len(pack) for pack in packs]
    cost = sum((stretch.stop - stretch.start) ** 2 for stretch in segments)
    return {
        "path": str(path),
        "packs": len(packs),
        "documents": len(documents),
        "segments": len(segments),
        "tokens": tokens,
        "trained_tokens": trained,
        "trained_share": pytest.approx(trained / tokens),
        "fill": pytest.approx(tokens / (len(packs) * most)),
        "padded_fill": pytest.approx(sum(rows) / (len(rows) * most)),
        "batch_padded_fill": pytest.approx(np.mean(rows) / longest),
        "packing_factor": pytest.approx(len(documents) / len(packs)),
        "max_length": most,
        "max_segments": max(counts),
        "segments_per_pack": {
            "median": pytest.approx(np.median(counts)),
            "p99": pytest.approx(np.percentile(counts, 99)),
            "max": max(counts),
        },
        "attention_cost": cost,
        "attention_cost_share": pytest.approx(cost / (len(packs) * most**2)),
        "truncated_documents": len({stretch.document.doc_id for stretch in truncated}),
        "truncated_tokens": sum(stretch.stop - stretch.start for stretch in truncated),
    }


def subset(values: dict[str, Any], names: Any) -> dict[str, Any]:
    return {name: values[name] for name in names}


@pytest.mark.parametrize("pad", [False, True])
def test_statistics_are_those_of_slow_counting_and_padding_is_in_none(tmp_path: Path, pad: bool) -> None:
    folder, recipe = tmp_path / "ds", sample(pad)
    make_dataset(folder, recipe)
    found = stats(folder).to_json()
    wanted = expected(folder, recipe)
    assert subset(found, wanted) == wanted


@st.composite
def whole_documents(draw: st.DrawFn) -> Recipe:
    """Documents cut into pieces of max_length, in packs as they come."""
    most = draw(st.integers(2, 20))
    packs: list[list[Stretch]] = [[]]
    for doc_id, length in enumerate(draw(st.lists(st.integers(2, 60), min_size=1, max_size=30))):
        each = document(doc_id, length)
        for start in range(0, length, most):
            piece = Stretch(each, start, min(start + most, length))
            if sum(s.stop - s.start for s in packs[-1]) + piece.stop - piece.start > most:
                packs.append([])
            packs[-1].append(piece)
    return Recipe(most, [pack for pack in packs if pack], packs_per_shard=draw(st.integers(1, 9)))


@given(whole_documents())
def test_statistics_of_any_dataset_are_those_of_slow_counting(recipe: Recipe) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ds"
        make_dataset(folder, recipe)
        found = stats(folder).to_json()
        wanted = expected(folder, recipe)
        assert subset(found, wanted) == wanted
        fills = [sum(s.stop - s.start for s in pack) / recipe.max_length for pack in recipe.packs]
        for low, bin in zip(FILL_EDGES, found["fill_histogram"], strict=True):
            high = bin["high"]
            inside = [fill == 1 if low == 1 else low <= fill < high for fill in fills]
            assert (bin["low"], bin["count"]) == (low, sum(inside))
        counts = [len(pack) for pack in recipe.packs]
        for bin in found["segments_per_pack_histogram"]:
            assert bin["count"] == sum(bin["low"] <= count < bin["high"] for count in counts)
        assert sum(bin["count"] for bin in found["segments_per_pack_histogram"]) == len(counts)
        lengths = {s.document.doc_id: len(s.document.ids) for pack in recipe.packs for s in pack}.values()
        for bin in found["document_length_histogram"]:
            assert bin["high"] == 2 * bin["low"]
            assert bin["count"] == sum(bin["low"] <= length < bin["high"] for length in lengths)
        assert sum(bin["count"] for bin in found["document_length_histogram"]) == len(lengths)


def test_bins_of_segments_are_powers_of_two_and_half_way_between(tmp_path: Path) -> None:
    packs = [
        [Stretch(document(doc_id, 2), 0, 2) for doc_id in range(first, first + n)] for first, n in ((0, 2), (2, 26))
    ]
    make_dataset(tmp_path / "ds", Recipe(64, packs))
    bins = [(bin.low, bin.high, bin.count) for bin in stats(tmp_path / "ds").segments_per_pack_histogram]
    assert bins[:3] == [(2, 3, 1), (3, 4, 0), (4, 6, 0)]
    assert bins[3:] == [(6, 8, 0), (8, 12, 0), (12, 16, 0), (16, 24, 0), (24, 32, 1)]


def test_left_out_and_rejected_are_the_manifests(tmp_path: Path) -> None:
    make_dataset(tmp_path / "ds", sample())
    found = stats(tmp_path / "ds").to_json()
    assert found["rejected"] == {
        "bad_json": 1,
        "empty": 1,
        "nothing_to_train": 4,
        "overlong": 1,
        "template_error": 1,
        "truncated": 1,
        "wrong_type": 1,
    }
    assert list(found["rejected"]) == sorted(found["rejected"])
    # Left out whole: documents 7, 8 and 61, and the records 1 and 63 that never became tokens.
    assert (found["left_out"]["documents"], found["left_out"]["bad_records"]) == (5, 2)
    assert found["left_out"]["tokens"] == 16 + 16 + 30 + 1 + 4
    assert found["left_out"]["tokens_by_reason"]["truncated"] == 4


def test_the_bound_and_the_gap_to_it(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    change_manifest(folder, lambda values: values.update(lower_bound_packs=8))
    assert (stats(folder).lower_bound_packs, stats(folder).gap_to_bound) == (8, 2)


def test_json_is_plain_and_has_the_promised_names(tmp_path: Path) -> None:
    make_dataset(tmp_path / "ds", sample())
    values = stats(tmp_path / "ds").to_json()
    assert json.loads(json.dumps(values)) == values
    assert set(values) == set(DatasetStats.__dataclass_fields__)
    promised = "path packs documents segments tokens trained_tokens fill max_length lower_bound_packs max_segments"
    assert {*promised.split(), "rejected", "truncated_documents", "truncated_tokens"} <= set(values)


def test_no_pack_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    before = stats(folder)
    path = folder / "train-00000-of-00002.parquet"
    raw = bytearray(path.read_bytes())
    raw[4:300] = bytes(296)  # pages of the first columns
    path.write_bytes(raw)
    assert stats(folder) == before


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir, Path.touch], ids=["nothing", "empty", "a_file"])
def test_what_is_no_dataset_is_an_error(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "ds")
    with pytest.raises(BadData, match=r"not a packed dataset|cannot be read"):
        stats(tmp_path / "ds")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("pack_tokens", 17, "row 1 are those of no pack"),
        ("pack_tokens", -1, "row 1 are those of no pack"),
        ("pack_segments", 10**15, "row 1 are those of no pack"),
        ("pack_segments", 0, "row 1 are those of no pack"),
        ("pack_squares", 2**62, "row 1 are those of no pack"),
        ("pack_tokens", 2**63, "pack_tokens is missing or damaged"),
        ("pack_tokens", 16.0, "pack_tokens is missing or damaged"),
        ("pack_segments", True, "pack_segments is missing or damaged"),
        ("pack_tokens", 15, "the shards do not hold what the manifest says"),
    ],
)
def test_sums_that_cannot_be_are_refused(tmp_path: Path, key: str, value: int, message: str) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    path = folder / "train-00000-of-00002.parquet"
    table = pq.read_table(path)
    metadata = dict(pq.read_metadata(path).metadata)
    del metadata[b"ARROW:schema"]
    sums = json.loads(metadata[b"packtool." + key.encode()])
    sums[1] = value
    metadata[b"packtool." + key.encode()] = json.dumps(sums).encode()
    if message.startswith("the shards"):  # a pack of 15 in place of 16 that is possible in itself
        squares = json.loads(metadata[b"packtool.pack_squares"])
        squares[1] = 15 * 15
        metadata[b"packtool.pack_squares"] = json.dumps(squares).encode()
    pq.write_table(table.replace_schema_metadata(metadata), path)
    with pytest.raises(BadData, match=message):
        stats(folder)


def test_a_shard_that_is_a_link_or_missing_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    path = folder / "train-00000-of-00002.parquet"
    path.rename(tmp_path / "elsewhere")
    with pytest.raises(BadData, match="cannot be found"):
        stats(folder)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadData, match="a link"):
        stats(folder)


def test_other_numbers_of_packs_than_the_manifests_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    change_manifest(folder, lambda values: values["shards"][0].update(packs=6))
    with pytest.raises(BadData, match="5 packs; the manifest says 6"):
        stats(folder)
