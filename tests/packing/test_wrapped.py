import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.packing import OpenPack
from packtool.packing.packing import I32
from packtool.packing.wrapped import plan, stream

from . import reference
from .cases import Case, blocks_of, cases, chunk_by_chunk


def small(case: Case) -> Case:
    """A capacity at which the reference, which goes token by token, is done in time."""
    lengths = [min(length, 300) for length in case.lengths]
    return Case(lengths, min(case.max_length, 130), case.max_segments, case.block)


@given(cases(longest=4, most=60).map(small))
def test_plan_joins_items_and_cuts_at_max_length(case: Case) -> None:
    with blocks_of(case.block):
        packing = plan(case.array, case.max_length, case.max_segments)
    expected = reference.wrapped(case.lengths, case.max_length, case.max_segments)
    assert reference.as_lists(packing, case.lengths) == expected


@given(cases(longest=4, most=60).map(small), st.data())
def test_a_stream_in_any_chunks_is_the_plan_of_the_whole(case: Case, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(case.lengths)), max_size=8)))
    with blocks_of(case.block):
        packing = chunk_by_chunk(stream, case.array, cuts, case.max_length, case.max_segments)
    expected = reference.wrapped(case.lengths, case.max_length, case.max_segments)
    assert reference.as_lists(packing, case.lengths) == expected


def test_golden_plan() -> None:
    lengths = [3, 4, 1]
    packs = reference.as_lists(plan(np.array(lengths, dtype=np.int32), 3), lengths)
    assert packs == [[(0, 0, 3)], [(1, 0, 3)], [(1, 3, 1), (2, 0, 1)]]


def test_a_document_of_a_hundred_packs_is_cut_into_them() -> None:
    packing = plan(np.array([1, 100 * 4096, 1], dtype=np.int32), 4096)
    assert packing.counts.tolist() == [2] + [1] * 99 + [2]
    assert packing.lengths is not None
    assert packing.lengths.tolist() == [1, 4095] + [4096] * 99 + [1, 1]


@pytest.mark.parametrize("max_segments", [None, 2])
def test_items_of_more_tokens_than_an_int32_counts_together_are_planned(max_segments: int | None) -> None:
    longest = 2**31 - 1
    packing = plan(np.array([longest, longest, 1], dtype=np.int32), 1 << 30, max_segments)
    assert packing.lengths is not None
    assert packing.lengths.sum(dtype=np.int64) == 2 * longest + 1
    assert packing.counts.tolist() == [1, 2, 1, 2]


def test_more_segments_than_an_int32_counts_are_refused() -> None:
    with pytest.raises(ValueError, match="segments in one plan"):
        plan(np.array([2**31 - 1], dtype=np.int32), 1)


def test_an_empty_item_is_refused() -> None:
    with pytest.raises(ValueError, match="item 0 has 0 tokens"):
        plan(np.array([0], dtype=np.int32), 4)


def test_a_pack_with_all_its_segments_stays_open_until_the_next_item() -> None:
    def chunk(*lengths: int) -> I32:
        return np.array(lengths, dtype=np.int32)

    part = stream(chunk(1, 1), 4, 2, OpenPack())
    assert part.counts.tolist() == []
    assert part.open == OpenPack(tokens=2, segments=2)
    after = stream(chunk(1), 4, 2, part.open)
    assert after.counts.tolist() == [2]
    assert after.open == OpenPack(tokens=1, segments=1)
