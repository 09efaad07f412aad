"""The fixed hashes: published values, and a checksum that adds up and sees every move."""

import warnings
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from packtool.hashing import odd_mix, order_hash, splitmix64, token_checksums

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
tokens = st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40)


def slow_splitmix64(x: int) -> int:
    z = (x + GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def slow_checksum(ids: list[int], offset: int = 0) -> int:
    return sum(slow_splitmix64((offset + i) << 32 | token) for i, token in enumerate(ids)) & MASK


def checksum(ids: list[int], offset: int = 0) -> int:
    (value,) = token_checksums(
        np.array(ids, np.int32), np.array([len(ids)], np.int32), np.array([offset], np.int32)
    ).tolist()
    return int(value)


def test_splitmix64_gives_the_published_sequence() -> None:
    published = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    states = np.array([(1234567 + step * GOLDEN) & MASK for step in range(5)], dtype=np.uint64)
    assert splitmix64(states).tolist() == published


@given(st.lists(st.integers(0, MASK), max_size=20))
def test_splitmix64_equals_plain_integers_and_changes_nothing(values: list[int]) -> None:
    x = np.array(values, dtype=np.uint64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # wrapping around is meant, and must not be warned of
        hashed = splitmix64(x)
    assert hashed.tolist() == [slow_splitmix64(value) for value in values]
    assert hashed.dtype == np.uint64
    assert x.tolist() == values


@given(st.integers(0, MASK), st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20))
def test_the_order_is_a_hash_of_seed_and_id(seed: int, ids: list[int]) -> None:
    key = slow_splitmix64(seed)
    assert order_hash(seed, np.array(ids)).tolist() == [slow_splitmix64(id ^ key) for id in ids]


def test_the_order_of_a_seed_is_fixed_for_ever() -> None:
    ids = np.arange(8)
    assert np.argsort(order_hash(0, ids)).tolist() == [1, 4, 5, 7, 6, 0, 3, 2]
    assert np.argsort(order_hash(1, ids)).tolist() != [1, 4, 5, 7, 6, 0, 3, 2]


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=20, unique=True))
def test_multipliers_are_odd_and_follow_from_the_document(ids: list[int]) -> None:
    multipliers = odd_mix(np.array(ids)).tolist()
    assert multipliers == [slow_splitmix64(id) | 1 for id in ids]


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), max_size=6), max_size=12), st.data())
def test_checksums_equal_the_slow_sum_with_empty_stretches_among_them(
    stretches: list[list[int]], data: st.DataObject
) -> None:
    offsets = [data.draw(st.integers(0, 2**31 - 10)) for _ in stretches]
    ids = np.array([id for stretch in stretches for id in stretch], dtype=np.int32)
    lengths = np.array([len(stretch) for stretch in stretches], dtype=np.int32)
    expected = [slow_checksum(stretch, offset) for stretch, offset in zip(stretches, offsets, strict=True)]
    assert token_checksums(ids, lengths, np.array(offsets, dtype=np.int32)).tolist() == expected
    assert token_checksums(ids, lengths).tolist() == [slow_checksum(stretch) for stretch in stretches]


@pytest.mark.parametrize("tokens_in_all", [32767, 32768, 32769, 70001])
def test_checksums_do_not_depend_on_where_blocks_of_the_work_end(tokens_in_all: int) -> None:
    ids = (np.arange(tokens_in_all, dtype=np.int64) * 7919 % 50000).astype(np.int32)
    for lengths in ([tokens_in_all], [0, 5, 0, 32762, 0, tokens_in_all - 32767, 0]):
        ends = np.cumsum(lengths)
        expected = [slow_checksum(ids[end - length : end].tolist()) for end, length in zip(ends, lengths, strict=True)]
        assert token_checksums(ids, np.array(lengths, dtype=np.int32)).tolist() == expected


@given(tokens, st.data())
def test_a_checksum_adds_up_over_any_cuts(ids: list[int], data: st.DataObject) -> None:
    cuts = data.draw(st.sets(st.integers(1, len(ids))))
    bounds = list(pairwise(sorted({0, *cuts, len(ids)})))
    assert sum(checksum(ids[a:b], a) for a, b in bounds) & MASK == checksum(ids)


@given(tokens, st.data())
def test_swapped_tokens_change_the_checksum(ids: list[int], data: st.DataObject) -> None:
    a, b = data.draw(st.integers(0, len(ids) - 1)), data.draw(st.integers(0, len(ids) - 1))
    assume(ids[a] != ids[b])
    swapped = list(ids)
    swapped[a], swapped[b] = swapped[b], swapped[a]
    assert checksum(swapped) != checksum(ids)


@given(tokens, st.integers(1, 1000))
def test_moved_changed_and_missing_tokens_change_the_checksum(ids: list[int], move: int) -> None:
    assert checksum(ids, move) != checksum(ids)
    assert checksum([(ids[0] + 1) % 2**31, *ids[1:]]) != checksum(ids)
    assert checksum(ids[:-1]) != checksum(ids)
    assert checksum([*ids, 0]) != checksum(ids)


def test_lengths_that_do_not_sum_to_the_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="lengths sum to 3, but there are 2 tokens"):
        token_checksums(np.zeros(2, np.int32), np.array([3], np.int32))


def test_nothing_has_no_checksums() -> None:
    assert token_checksums(np.zeros(0, np.int32), np.zeros(0, np.int32)).tolist() == []
    assert token_checksums(np.zeros(0, np.int32), np.zeros(2, np.int32)).tolist() == [0, 0]
