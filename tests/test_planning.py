"""Plans on disk: what is in them whatever the units, the groups and the flushes; orders; shards."""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool import planning
from packtool.hashing import order_hash
from packtool.packing import STRATEGIES
from packtool.planning import GroupSize, Plan, PlanRules, cut_shards, make_plan, read_packs
from tests.packing import reference
from tests.reference_pack import mix
from tests.stored import StoredRun, stored_run

Document = tuple[list[int], list[bool]]
RULES = PlanRules(
    strategy=STRATEGIES["bfd_split"],
    max_length=16,
    overlong="split",
    shuffle=True,
    seed=0,
    max_segments=None,
    group_tokens=None,
)


def rules(strategy: str, **changes: Any) -> PlanRules:
    """The rules of a strategy, with its own way with long documents."""
    chosen = STRATEGIES[strategy]
    return replace(RULES, strategy=chosen, overlong=chosen.overlong[0], **{"shuffle": chosen.shuffles, **changes})


def plan_of(run: StoredRun, chosen: PlanRules, folder: Path) -> Plan:
    return make_plan(run.units, run.store, chosen, folder, lambda _: None)


def packs_of(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(doc id, offset, tokens) of every segment of every pack."""
    segments, counts = read_packs(plan.folder, 0, plan.packs)
    listed = [(int(s["doc_id"]), int(s["offset"]), int(s["length"])) for s in segments]
    ends = np.cumsum(counts).tolist()
    return [listed[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]


def cuts_of(plan: Plan) -> list[tuple[int, int, int, int]]:
    blocks = [*plan.cuts(), *plan.untrained()]
    return sorted((int(c["doc_id"]), int(c["offset"]), int(c["length"]), int(c["reason"])) for b in blocks for c in b)


def document(length: int, trained: str = "all") -> Document:
    """``all`` of it trains, ``none``, or the ``last`` token."""
    return list(range(1, length + 1)), [
        trained == "all" or (trained == "last" and index == length - 1) for index in range(length)
    ]


documents = st.lists(
    st.builds(document, st.integers(1, 60), st.sampled_from(["all", "all", "none", "last"])), min_size=1, max_size=30
)


def in_units(found: Sequence[Document], size: int) -> list[list[Document]]:
    return [list(found[first : first + size]) for first in range(0, len(found), size)]


@given(
    found=documents,
    strategy=st.sampled_from(sorted(STRATEGIES)),
    shuffle=st.booleans(),
    size=st.integers(1, 30),
    flush=st.sampled_from([0, 500, 1 << 20]),
    group_tokens=st.sampled_from([None, 50, 300]),
    max_segments=st.sampled_from([None, 1, 3]),
)
def test_a_plan_does_not_depend_on_units_or_flushes_and_tiles_every_document(
    found: list[Document],
    strategy: str,
    shuffle: bool,
    size: int,
    flush: int,
    group_tokens: int | None,
    max_segments: int | None,
) -> None:
    chosen = rules(
        strategy,
        shuffle=shuffle and STRATEGIES[strategy].shuffles,
        group_tokens=group_tokens,
        max_segments=max_segments,
    )
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        run = stored_run(Path(name) / "whole", [found])
        whole = plan_of(run, chosen, Path(name) / "a")
        patch.setattr(planning, "_FLUSH_BYTES", flush)
        patch.setattr(planning, "_BLOCK_CUTS", 2)
        patch.setattr(planning, "_SHORT", 20)
        parted = plan_of(stored_run(Path(name) / "parted", in_units(found, size)), chosen, Path(name) / "b")
        assert (packs_of(whole), cuts_of(whole)) == (packs_of(parted), cuts_of(parted))
        assert (whole.counts, whole.lower_bound_packs) == (parted.counts, parted.lower_bound_packs)
        packs, cuts = packs_of(whole), cuts_of(whole)
        assert not list(whole.folder.glob("group-*"))

    stretches = sorted((doc, offset, length) for pack in packs for doc, offset, length in pack)
    stretches = sorted(stretches + [(doc, offset, length) for doc, offset, length, _ in cuts])
    at = dict.fromkeys(run.documents, 0)
    for doc, offset, length in stretches:
        assert offset == at[doc]
        at[doc] += length
    assert at == {doc: len(ids) for doc, (ids, _) in run.documents.items()}
    for pack in packs:
        assert sum(length for _, _, length in pack) <= chosen.max_length
        assert max_segments is None or len(pack) <= max_segments
        assert any(any(run.documents[doc][1][offset + 1 : offset + length]) for doc, offset, length in pack)
    assert whole.lower_bound_packs <= whole.packs
    assert sum(group.tokens for group in whole.groups) == whole.counts.tokens
    assert whole.counts.documents == len({doc for pack in packs for doc, _, _ in pack})
    assert dict(whole.counts.document_lengths) == {
        length: count
        for length in range(61)
        if (count := sum(len(run.documents[doc][0]) == length for doc in {d for pack in packs for d, _, _ in pack}))
    }


def test_the_order_of_a_shuffled_plan_is_fixed_forever(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "store", [[document(5 + n % 3) for n in range(12)]])
    expected = {
        ("bfd", 0): BFD_0,
        ("bfd", 1): BFD_1,
        ("wrapped", 0): WRAPPED_0,
    }
    for (strategy, seed), order in expected.items():
        plan = plan_of(run, rules(strategy, seed=seed), tmp_path / f"{strategy}{seed}")
        assert [[doc for doc, _, _ in pack] for pack in packs_of(plan)] == order
        assert order == _shuffled_slowly([5 + n % 3 for n in range(12)], strategy, seed)


def _shuffled_slowly(lengths: list[int], strategy: str, seed: int) -> list[list[int]]:
    """Documents in hash order, packed; then packs in hash order, numbered below zero."""

    def key(number: int) -> int:
        return mix(number % 2**64 ^ mix(seed))

    order = sorted(range(len(lengths)), key=key)
    lay = reference.best_fit_decreasing if strategy == "bfd" else reference.wrapped
    packs = lay([lengths[doc] for doc in order], 16, None)
    return [
        [order[item] for item, _, _ in packs[pack]] for pack in sorted(range(len(packs)), key=lambda n: key(-1 - n))
    ]


# Order is part of the promise of equal bytes: these change only with the format's version.
BFD_0 = [[5, 11], [7, 10], [2, 8], [6, 9, 0], [1, 4], [3]]
BFD_1 = [[7, 10], [4, 1], [8, 11], [5, 2], [6, 9, 0], [3]]
WRAPPED_0 = [[1, 4, 5], [10, 3, 2], [5, 11, 7], [2, 8], [6, 9, 0, 10]]


def test_shuffled_groups_are_stretches_of_the_hash_order(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "store", in_units([document(8) for _ in range(200)], 7))
    plan = plan_of(run, rules("wrapped", group_tokens=400, seed=3), tmp_path / "plan")
    assert len(plan.groups) == 4
    hashes = []
    first = 0
    for group in plan.groups:
        packs = packs_of(plan)[first : first + group.packs]
        first += group.packs
        docs = np.array(sorted({doc for pack in packs for doc, _, _ in pack}))
        hashes.append(order_hash(3, docs))
        assert 20 < len(docs) < 80
    for before, after in pairwise(hashes):
        assert before.max() < after.min()


def test_unshuffled_groups_are_stretches_of_the_input(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "store", in_units([document(8) for _ in range(200)], 7))
    plan = plan_of(run, rules("bfd", group_tokens=400, shuffle=False), tmp_path / "plan")
    assert [group.tokens for group in plan.groups] == [400, 400, 400, 400]
    assert [doc for pack in packs_of(plan) for doc, _, _ in pack] == list(range(200))


def test_all_pieces_of_a_document_are_in_the_group_of_its_first_token(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "store", [[document(40), document(8)], [document(8), document(8)]])
    plan = plan_of(run, rules("bfd_split", group_tokens=32, shuffle=False), tmp_path / "plan")
    # The border of the groups falls into the first document, behind its second piece.
    assert [group.packs for group in plan.groups] == [3, 2]
    assert packs_of(plan) == [[(0, 0, 16)], [(0, 16, 16)], [(0, 32, 8)], [(1, 0, 8), (2, 0, 8)], [(3, 0, 8)]]
    shuffled = plan_of(run, rules("bfd_split", group_tokens=1), tmp_path / "shuffled")
    first = 0
    groups_of: dict[int, set[int]] = {}
    for number, group in enumerate(shuffled.groups):
        for pack in packs_of(shuffled)[first : first + group.packs]:
            for doc, _, _ in pack:
                groups_of.setdefault(doc, set()).add(number)
        first += group.packs
    assert [len(groups) for groups in groups_of.values()] == [1, 1, 1, 1]


def test_very_many_short_documents_are_more_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "GROUP_DOCUMENTS", 50)
    run = stored_run(tmp_path / "store", [[document(2) for _ in range(190)]])
    assert len(plan_of(run, rules("bfd"), tmp_path / "plan").groups) == 4


def test_a_stream_fills_its_packs_across_units_and_groups(tmp_path: Path) -> None:
    run = stored_run(tmp_path / "store", [[document(7)] for _ in range(50)])
    plan = plan_of(run, rules("wrapped", shuffle=False, group_tokens=40), tmp_path / "plan")
    lengths = [sum(length for _, _, length in pack) for pack in packs_of(plan)]
    assert lengths == [16] * 21 + [14]
    assert [group.packs for group in plan.groups] == [3] * 7 + [1]


def test_the_first_overlong_document_is_known(tmp_path: Path) -> None:
    run = stored_run(
        tmp_path / "store", [[document(3)], [document(9), document(40, "none"), document(50)], [document(60)]]
    )
    plan = plan_of(run, rules("bfd"), tmp_path / "plan")
    assert plan.first_overlong == (3, 50)
    assert plan.counts.cut_rows == {"overlong": 2, "nothing_to_train": 1}


def test_packs_without_a_trained_token_are_left_out_and_need_no_place(tmp_path: Path) -> None:
    # 48 tokens of which the last alone trains: two packs of the three that a stream makes of it train nothing.
    run = stored_run(tmp_path / "store", [[document(48, "last"), document(16)]])
    plan = plan_of(run, rules("wrapped", shuffle=False), tmp_path / "plan")
    assert packs_of(plan) == [[(0, 32, 16)], [(1, 0, 16)]]
    assert [(doc, offset, length) for doc, offset, length, _ in cuts_of(plan)] == [(0, 0, 16), (0, 16, 16)]
    assert plan.lower_bound_packs == 2
    assert plan.counts.documents == 2, "a document is out only if all of its tokens are"
    assert plan.counts.piece_lengths == {16: 2}


@pytest.mark.parametrize("trained", ["all", "last"])
def test_a_last_pack_of_one_token_is_left_out(tmp_path: Path, trained: str) -> None:
    run = stored_run(tmp_path / "store", [[document(10), document(23, trained)]])
    plan = plan_of(run, rules("wrapped", shuffle=False), tmp_path / "plan")
    assert cuts_of(plan)[-1][:3] == (1, 22, 1)
    assert plan.packs == (2 if trained == "all" else 1)


# --- shards --------------------------------------------------------------------------------------------------

groups = st.lists(st.builds(GroupSize, st.integers(0, 60), st.integers(0, 5000)), min_size=1, max_size=6)


@given(found=groups, shard_tokens=st.integers(1, 10_000), row_group=st.integers(1, 20))
def test_shards_tile_the_packs_in_whole_row_groups_of_one_group_each(
    found: list[GroupSize], shard_tokens: int, row_group: int
) -> None:
    size, ranges = cut_shards(found, shard_tokens, None, row_group)
    assert size == row_group
    assert [shard.first for shard in ranges] == [0, *(shard.stop for shard in ranges)][: len(ranges)]
    ends = np.cumsum([group.packs for group in found]).tolist()
    assert (ranges[-1].stop if ranges else 0) == ends[-1]
    for shard in ranges:
        assert shard.first < shard.stop
        end = next(end for end in ends if end > shard.first)
        assert shard.stop <= end, "a shard is of one group"
        assert shard.stop == end or (shard.stop - shard.first) % row_group == 0


@pytest.mark.parametrize(
    ("millions", "shards"), [(1, 1), (5, 1), (8, 2), (30, 4), (60, 4), (200, 4), (256, 4), (640, 10), (6_400, 100)]
)
def test_a_small_dataset_has_a_few_shards_and_a_large_one_shards_of_64m_tokens(millions: int, shards: int) -> None:
    packs = millions * 1_000_000 // 4096
    assert len(cut_shards([GroupSize(packs, packs * 4096)], None, None, 64)[1]) == shards


@given(found=groups, count=st.integers(1, 80), row_group=st.integers(1, 20))
def test_a_given_number_of_shards_is_even_to_within_a_row_group(
    found: list[GroupSize], count: int, row_group: int
) -> None:
    packs = sum(group.packs for group in found)
    if packs < count:
        with pytest.raises(ValueError, match="cannot be cut"):
            cut_shards(found, 1, count, row_group)
        return
    size, ranges = cut_shards(found, 1, count, row_group)
    assert 1 <= size <= row_group
    assert len(ranges) == count
    assert [shard.first for shard in ranges] == [0, *(shard.stop for shard in ranges)][:count]
    assert ranges[-1].stop == packs
    sizes = [shard.stop - shard.first for shard in ranges]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= size
    assert all(size_ % size == 0 for size_ in sizes[:-1])
