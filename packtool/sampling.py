"""A sample of records instead of all: which ones, and how sure the numbers are that are scaled up from them.

Sees record numbers, lengths and trained runs; reads nothing and plans nothing on disk.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packtool.hashing import order_hash
from packtool.packing import trained_in
from packtool.planning import PlanRules, trained_runs
from packtool.token_store import Int64s, UnitDocuments

GROUPS = 20
"""Parts of a sample, each of which is left out once to see how much the numbers hang on it."""
CONFIDENCE = 0.95
_STUDENT = 2.093
"""The 97.5 % quantile of Student's t for GROUPS - 1 degrees of freedom."""
_CHOICE = 0x9D7A_31E5_C0FF_5A1E
_PARTS = 0x51B0_7F3D_64C2_E98B
"""The order of a plan must not follow from what is in the sample, so each has a seed of its own."""
_BLOCK = 1 << 22


@dataclass(frozen=True, slots=True)
class Interval:
    """Where the true number lies, for ``CONFIDENCE`` of all samples."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a sample says of the plan of all records."""

    packs: float
    packs_interval: Interval
    fill: float
    fill_interval: Interval


def choose_records(records: int, size: int, seed: int) -> Int64s:
    """Which records are in the sample: the ``size`` of lowest hash, so each set is as likely as any other.

    Returns:
        int64 [min(size, records)], rising.
    """
    chosen = np.empty(0, np.int64)
    hashes = np.empty(0, np.uint64)
    for start in range(0, records, _BLOCK):
        block = np.arange(start, min(start + _BLOCK, records))
        chosen = np.concatenate([chosen, block])
        hashes = np.concatenate([hashes, order_hash(seed ^ _CHOICE, block)])
        kept = np.argsort(hashes, kind="stable")[:size]
        chosen, hashes = chosen[kept], hashes[kept]
    return np.sort(chosen)


@dataclass(frozen=True, slots=True)
class Sample:
    """The records of a sample: the documents that they became, and how they are dealt to parts."""

    documents: UnitDocuments
    """In source order, as one unit; their rows are only numbers."""
    parts: Int64s
    """int64 [n], the part of each document, 0 to GROUPS - 1."""
    part_records: Int64s
    """int64 [GROUPS], records of each part, with those that became no document."""
    population: int
    """Records there are in all."""

    @property
    def records(self) -> int:
        """Records in the sample."""
        return int(self.part_records.sum())


def dealt(units: Sequence[UnitDocuments], doc_ids: Int64s, refused_ids: Int64s, population: int, seed: int) -> Sample:
    """The documents of the units together, dealt by hash to parts of equally many records.

    Args:
        units: what the sampled records became, in source order.
        doc_ids: int64 [n], the doc id of each document.
        refused_ids: int64 [m], those of sampled records that became none.
        population: records there are in all.
        seed: of the run.
    """
    records = np.concatenate([doc_ids, refused_ids])
    parts = np.empty(len(records), np.int64)
    parts[np.argsort(order_hash(seed ^ _PARTS, records), kind="stable")] = np.arange(len(records)) % GROUPS
    documents = UnitDocuments(
        rows=np.arange(len(doc_ids), dtype=np.int32),
        lengths=np.concatenate([unit.lengths for unit in units]),
        checksums=np.concatenate([unit.checksums for unit in units]),
        run_counts=np.concatenate([unit.run_counts for unit in units]),
        runs=np.concatenate([unit.runs for unit in units]),
    )
    return Sample(documents, parts[: len(doc_ids)], np.bincount(parts, minlength=GROUPS), population)


def estimate(sample: Sample, rules: PlanRules) -> Estimate:
    """Packs and fill of the whole from a sample, and how far off they may be: a delete-a-group jackknife.

    The sample is planned without each of its parts in turn; how much the results differ says how much another
    sample would (Shao and Tu, "The Jackknife and Bootstrap", 1995). Errors shrink by the square root of the share
    that is not in the sample, since of the rest nothing has to be guessed. More documents can be packed tighter,
    at best as the square root of their number says: how much tighter a sample is than its halves widens the
    intervals on that side.
    """
    documents, parts = sample.documents, sample.parts
    sampled, population = sample.records, sample.population
    whole = _packed(documents, rules)
    without = [_packed(_only(documents, parts != part), rules) for part in range(GROUPS)]
    halves = [_packed(_only(documents, parts % 2 == half), rules) for half in range(2)]
    room = rules.max_length
    rates = [each.packs / (sampled - int(records)) for each, records in zip(without, sample.part_records, strict=True)]
    unseen = (1 - sampled / population) ** 0.5
    fill, packs = whole.fill(room), whole.packs / sampled * population
    packs_error = _error(rates) * unseen * population + 1  # the last pack is full or not
    fill_error = _error([each.fill(room) for each in without]) * unseen
    gain = fill - sum(each.fill(room) for each in halves) / 2
    tighter = max(0.0, gain) / (2**0.5 - 1) * (1 - (sampled / population) ** 0.5)
    # Where no more documents fit into the last pack, it is one, however empty.
    emptiness = whole.unfilled * (population / sampled - 1)
    loosest = max(0.0, fill * packs / (packs + emptiness + 1) - fill_error)
    tightest = min(1.0, fill + fill_error + tighter)
    fewest = packs * (fill / (fill + tighter) if fill else 1.0) - packs_error
    return Estimate(
        packs, Interval(max(0.0, fewest), packs + packs_error + emptiness), fill, Interval(loosest, tightest)
    )


def _error(values: list[float]) -> float:
    spread = np.array(values)
    variance = (GROUPS - 1) / GROUPS * float(((spread - spread.mean()) ** 2).sum())
    return _STUDENT * float(variance**0.5)


@dataclass(frozen=True, slots=True)
class _Packed:
    packs: float
    """The last one counts as far as it is full: with more documents it would be."""
    tokens: int
    unfilled: float
    """How far the last one is empty, from 0 to 1."""

    def fill(self, max_length: int) -> float:
        return self.tokens / (self.packs * max_length) if self.packs else 0.0


def _packed(documents: UnitDocuments, rules: PlanRules) -> _Packed:
    runs = trained_runs(documents)
    pieces = rules.strategy.pieces(documents.lengths, runs, rules.max_length, rules.overlong)
    if not len(pieces.length):
        return _Packed(0.0, 0, 0.0)
    packing = rules.strategy.plan(pieces.length.copy(), rules.max_length, rules.max_segments)
    lengths = pieces.length[packing.items] if packing.lengths is None else packing.lengths
    starts = np.cumsum(packing.counts, dtype=np.int64) - packing.counts
    tokens = np.add.reduceat(lengths, starts, dtype=np.int64)
    if rules.strategy.keeps_untrained:
        within = 0 if packing.offsets is None else packing.offsets
        offsets = pieces.offset[packing.items] + within
        trained = trained_in(runs, pieces.doc[packing.items], offsets, lengths)
        tokens = tokens[np.add.reduceat(trained, starts, dtype=np.int64) > 0]
    if not len(tokens):
        return _Packed(0.0, 0, 0.0)
    unfilled = 1 - float(tokens[-1]) / rules.max_length
    return _Packed(len(tokens) - unfilled, int(tokens.sum()), unfilled)


def _only(documents: UnitDocuments, kept: NDArray[np.bool_]) -> UnitDocuments:
    kept_runs = np.repeat(kept, documents.run_counts)
    return UnitDocuments(
        rows=documents.rows[kept],
        lengths=documents.lengths[kept],
        checksums=documents.checksums[kept],
        run_counts=documents.run_counts[kept],
        runs=documents.runs[kept_runs],
    )
