"""What holds for every strategy of the registry, and what each says of itself."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.packing import STRATEGIES, Histogram, Strategy
from packtool.packing.packing import I32

from . import reference
from .cases import Case, blocks_of, cases

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())


@given(cases(), st.sampled_from(sorted(STRATEGIES)))
def test_every_token_is_in_exactly_one_segment_and_every_pack_within_its_limits(case: Case, name: str) -> None:
    strategy = STRATEGIES[name]
    with blocks_of(case.block):
        packing = strategy.plan(case.array, case.max_length, case.max_segments)
    packs = reference.as_lists(packing, case.lengths)
    for pack in packs:
        assert 1 <= len(pack) <= (case.max_segments or len(case.lengths))
        assert 1 <= sum(size for _, _, size in pack) <= case.max_length
    reached = [0] * len(case.lengths)
    for item, offset, size in sorted(segment for pack in packs for segment in pack):
        assert offset == reached[item]
        assert size >= 1
        reached[item] += size
    assert reached == case.lengths
    assert len(packs) >= strategy.bound(Histogram.of(case.array), case.max_length, case.max_segments)


@every_strategy
def test_a_packing_is_made_of_int32(strategy: Strategy) -> None:
    for lengths in ([], [2, 3, 1]):
        packing = strategy.plan(np.array(lengths, dtype=np.int32), 4, None)
        columns = (packing.items, packing.counts, packing.offsets, packing.lengths)
        assert {column.dtype for column in columns if column is not None} == {np.dtype(np.int32)}


@every_strategy
def test_the_lengths_are_left_as_they_were(strategy: Strategy) -> None:
    lengths = np.array([3, 1, 4, 1, 5], dtype=np.int32)
    lengths.flags.writeable = False  # an array mapped from a file is like this
    strategy.plan(lengths, 5, None)
    assert lengths.tolist() == [3, 1, 4, 1, 5]


@pytest.mark.parametrize(
    ("name", "auto", "refused"),
    [
        ("bfd", "drop", "split"),
        ("bfd_split", "split", "drop"),
        ("wrapped", "split", "truncate"),
        ("in_order", "drop", None),
    ],
)
def test_overlong_policies(name: str, auto: str, refused: str | None) -> None:
    strategy = STRATEGIES[name]
    assert strategy.takes("auto") == strategy.takes(auto) == auto
    assert refused is None or strategy.takes(refused) is None
    assert strategy.takes("nonsense") is None


def test_the_registry_is_keyed_by_the_strategies_own_names() -> None:
    assert {name: strategy.name for name, strategy in STRATEGIES.items()} == {
        name: name for name in ("bfd", "bfd_split", "wrapped", "in_order")
    }


def lognormal(n: int, max_length: int) -> I32:
    lengths = np.random.default_rng(0).lognormal(np.log(350), 1.0, n)
    return np.clip(lengths, 1, max_length).astype(np.int32)


def peak_bytes(strategy: Strategy, lengths: I32, max_length: int, max_segments: int | None) -> int:
    tracemalloc.start()
    try:
        strategy.plan(lengths, max_length, max_segments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@every_strategy
@pytest.mark.parametrize("max_segments", [None, 12])
def test_planning_takes_at_most_16_bytes_a_document(strategy: Strategy, max_segments: int | None) -> None:
    n = 3_000_000
    assert peak_bytes(strategy, lognormal(n, 4096), 4096, max_segments) <= 16 * n


def test_best_fit_takes_at_most_16_bytes_a_document_where_each_fills_a_pack() -> None:
    n = 3_000_000
    assert peak_bytes(STRATEGIES["bfd"], np.full(n, 9, dtype=np.int32), 9, None) <= 16 * n


@pytest.mark.soak
@every_strategy
def test_planning_a_hundred_million_documents_takes_at_most_16_bytes_each(strategy: Strategy) -> None:
    n = 10**8
    lengths = np.tile(lognormal(10**7, 4096), 10)
    assert peak_bytes(strategy, lengths, 4096, None) <= 16 * n
