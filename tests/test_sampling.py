"""Samples: each record is as likely as any other, and the intervals cover the truth as often as they say."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from packtool.packing import STRATEGIES, TrainedRuns
from packtool.planning import PlanRules
from packtool.sampling import GROUPS, Estimate, Sample, choose_records, dealt, estimate
from packtool.token_store import UnitDocuments

POPULATION = 6_000


@given(st.integers(0, 300), st.integers(1, 400), st.integers(0, 2**64 - 1))
def test_a_sample_is_as_many_different_records_in_order(records: int, size: int, seed: int) -> None:
    chosen = choose_records(records, size, seed).tolist()
    assert len(chosen) == min(size, records)
    assert chosen == sorted(set(chosen))
    assert all(0 <= record < records for record in chosen)
    assert chosen == choose_records(records, size, seed).tolist()


def test_every_record_is_about_equally_often_in_a_sample() -> None:
    counts: Counter[int] = Counter()
    for seed in range(2_000):
        counts.update(choose_records(40, 10, seed).tolist())
    assert len(counts) == 40
    assert all(400 < count < 600 for count in counts.values())  # 500 and five times its deviation


def test_a_sample_chosen_block_by_block_is_that_of_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = choose_records(1_000, 77, 5).tolist()
    monkeypatch.setattr("packtool.sampling._BLOCK", 64)
    assert choose_records(1_000, 77, 5).tolist() == whole


@given(st.integers(0, 200), st.integers(0, 60), st.integers(0, 9))
def test_parts_have_equally_many_records_refused_ones_with_them(documents: int, refused: int, seed: int) -> None:
    ids = np.arange(documents + refused, dtype=np.int64) * 7
    sample = sample_of(np.full(documents, 5, np.int32), ids[:documents], ids[documents:], 10_000, seed)
    assert sample.records == documents + refused
    assert sample.part_records.max() - sample.part_records.min() <= 1
    assert (np.bincount(sample.parts, minlength=GROUPS) <= sample.part_records).all()


def sample_of(
    lengths: NDArray[np.int32], ids: NDArray[np.int64], refused: NDArray[np.int64], population: int, seed: int
) -> Sample:
    """Documents of these lengths that train all through."""
    n = len(lengths)
    documents = UnitDocuments(
        rows=np.arange(n, dtype=np.int32),
        lengths=lengths,
        checksums=np.zeros(n, np.uint64),
        run_counts=np.ones(n, np.int32),
        runs=np.stack([np.zeros(n, np.int32), lengths], axis=1),
    )
    return dealt([documents], ids, refused, population, seed)


# --- how sure --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    lengths: Callable[[np.random.Generator], NDArray[np.float64]]
    strategy: str
    overlong: str


KINDS = {
    "lognormal": Kind(lambda random: random.lognormal(np.log(350), 1.0, POPULATION), "bfd_split", "split"),
    "lognormal, dropped": Kind(lambda random: random.lognormal(np.log(350), 1.0, POPULATION), "bfd", "drop"),
    "over half": Kind(lambda random: random.uniform(520, 700, POPULATION), "bfd", "drop"),
    "any up to full": Kind(lambda random: random.uniform(2, 1024, POPULATION), "bfd", "drop"),
    "short": Kind(lambda random: random.uniform(5, 100, POPULATION), "wrapped", "split"),
    "in order": Kind(lambda random: random.lognormal(np.log(350), 1.0, POPULATION), "in_order", "truncate"),
}


def rules_of(kind: Kind) -> PlanRules:
    return PlanRules(
        strategy=STRATEGIES[kind.strategy],
        max_length=1024,
        overlong=STRATEGIES[kind.strategy].takes(kind.overlong) or "drop",
        shuffle=False,
        seed=0,
        max_segments=None,
        group_tokens=None,
    )


def truth(lengths: NDArray[np.int32], rules: PlanRules) -> tuple[int, float]:
    """Packs and fill of all documents, by the strategy itself."""
    everything = sample_of(lengths, np.arange(len(lengths)), np.empty(0, np.int64), len(lengths), 0)
    runs = everything.documents.runs
    trained = TrainedRuns(everything.documents.run_counts, runs[:, 0].copy(), runs[:, 1].copy())
    pieces = rules.strategy.pieces(lengths, trained, rules.max_length, rules.overlong)
    packs = len(rules.strategy.plan(pieces.length, rules.max_length, None).counts)
    return packs, int(pieces.length.sum()) / (packs * rules.max_length)


def estimates(kind: Kind, size: int, samples: int) -> tuple[list[Estimate], int, float]:
    lengths = np.clip(kind.lengths(np.random.default_rng(11)), 2, 20_000).astype(np.int32)
    rules = rules_of(kind)
    found = []
    for seed in range(samples):
        chosen = choose_records(POPULATION, size, seed)
        found.append(estimate(sample_of(lengths[chosen], chosen, np.empty(0, np.int64), POPULATION, seed), rules))
    return found, *truth(lengths, rules)


def covered(kind: Kind, size: int, samples: int) -> tuple[float, float]:
    """How often the intervals hold the true packs and the true fill."""
    found, packs, fill = estimates(kind, size, samples)
    return (
        sum(each.packs_interval.low <= packs <= each.packs_interval.high for each in found) / samples,
        sum(each.fill_interval.low <= fill <= each.fill_interval.high for each in found) / samples,
    )


@pytest.mark.parametrize("name", KINDS)
def test_intervals_cover_the_truth_about_as_often_as_they_say(name: str) -> None:
    packs, fill = covered(KINDS[name], 300, 40)
    assert packs >= 0.85  # of 19 in 20: less is less likely than 1 in 100
    assert fill >= 0.85


@pytest.mark.soak
@pytest.mark.parametrize("size", [100, 1_000])
@pytest.mark.parametrize("name", KINDS)
def test_intervals_cover_the_truth_about_as_often_as_they_say_many_times(name: str, size: int) -> None:
    packs, fill = covered(KINDS[name], size, 150)
    assert packs >= 0.9
    assert fill >= 0.9


def test_intervals_are_narrow_enough_to_be_of_use_and_narrower_with_more_records() -> None:
    widths = []
    for size in (100, 400, 1_600):
        found, packs, _ = estimates(KINDS["lognormal"], size, 6)
        widths.append(np.mean([each.packs_interval.high - each.packs_interval.low for each in found]) / packs)
        assert all(each.fill_interval.high - each.fill_interval.low < 4 / size**0.5 for each in found)
    assert widths[0] > widths[1] > widths[2]
    assert widths[2] < 0.15


def test_a_sample_of_nearly_everything_is_nearly_sure() -> None:
    found, packs, fill = estimates(KINDS["lognormal"], POPULATION - 1, 1)
    assert found[0].packs == pytest.approx(packs, abs=3)
    assert found[0].packs_interval.high - found[0].packs_interval.low < 12
    assert found[0].fill == pytest.approx(fill, abs=0.001)


def test_packs_of_a_stream_that_train_nothing_are_not_counted() -> None:
    rules = rules_of(KINDS["short"])
    lengths = np.full(200, 4 * rules.max_length, np.int32)
    n = len(lengths)
    starts = np.full(n, 3 * rules.max_length, np.int32)  # only the last quarter trains
    documents = UnitDocuments(
        rows=np.arange(n, dtype=np.int32),
        lengths=lengths,
        checksums=np.zeros(n, np.uint64),
        run_counts=np.ones(n, np.int32),
        runs=np.stack([starts, lengths], axis=1),
    )
    sample = dealt([documents], np.arange(n, dtype=np.int64), np.empty(0, np.int64), 10 * n, 0)
    assert estimate(sample, rules).packs == pytest.approx(10 * n)


def test_a_sample_without_a_document_to_pack_gives_nothing() -> None:
    sample = sample_of(np.full(40, 5_000, np.int32), np.arange(40), np.empty(0, np.int64), 400, 0)
    found = estimate(sample, rules_of(KINDS["over half"]))
    assert (found.packs, found.fill) == (0, 0)
