"""A sample of records instead of all: which ones, and how sure the numbers are that are scaled up from them.

Sees record numbers, lengths and trained runs; reads nothing and plans nothing on disk.
"""

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


def parts_of(doc_ids: Int64s, seed: int) -> NDArray[np.int64]:
    """The part of each record of a sample, 0 to GROUPS - 1: parts of equal size, dealt by hash."""
    order = np.argsort(order_hash(seed ^ _PARTS, doc_ids), kind="stable")
    parts = np.empty(len(doc_ids), np.int64)
    parts[order] = np.arange(len(doc_ids)) % GROUPS
    return parts


def estimate(
    documents: UnitDocuments, parts: NDArray[np.int64], part_records: Int64s, population: int, rules: PlanRules
) -> Estimate:
    """Packs and fill of the whole from a sample, and how far off they may be: a delete-a-group jackknife.

    The sample is planned without each of its parts in turn; how much the results differ says how much another
    sample would (Shao and Tu, "The Jackknife and Bootstrap", 1995). Errors shrink by the square root of the share
    that is not in the sample, since of the rest nothing has to be guessed. More documents can be packed tighter,
    at best as the square root of their number says: how much tighter a sample is than its halves widens the
    intervals on that side.

    Args:
        documents: the sample's.
        parts: int64 [n], the part of each document.
        part_records: int64 [GROUPS], sampled records of each part, with those that became no document.
        population: records there are in all.
        rules: how to plan.
    """
    sampled = int(part_records.sum())
    whole = _packed(documents, rules)
    without = [_packed(_only(documents, parts != part), rules) for part in range(GROUPS)]
    halves = [_packed(_only(documents, parts % 2 == half), rules) for half in range(2)]
    room = rules.max_length
    rates = [each.packs / (sampled - int(records)) for each, records in zip(without, part_records, strict=True)]
    unseen = (1 - sampled / population) ** 0.5
    fill, packs = whole.fill(room), whole.packs / sampled * population
    packs_error = _error(rates) * unseen * population + 1  # the last pack is full or not
    fill_error = _error([each.fill(room) for each in without]) * unseen
    gain = fill - sum(each.fill(room) for each in halves) / 2
    tighter = max(0.0, gain) / (2**0.5 - 1) * (1 - (sampled / population) ** 0.5)
    loosest = max(0.0, fill - fill_error - (fill / packs if packs else 0.0))
    tightest = min(1.0, fill + fill_error + tighter)
    fewest = packs * (fill / (fill + tighter) if fill else 1.0) - packs_error
    return Estimate(packs, Interval(max(0.0, fewest), packs + packs_error), fill, Interval(loosest, tightest))


def _error(values: list[float]) -> float:
    spread = np.array(values)
    variance = (GROUPS - 1) / GROUPS * float(((spread - spread.mean()) ** 2).sum())
    return _STUDENT * float(variance**0.5)


@dataclass(frozen=True, slots=True)
class _Packed:
    packs: float
    """The last one counts as far as it is full: with more documents it would be."""
    tokens: int

    def fill(self, max_length: int) -> float:
        return self.tokens / (self.packs * max_length) if self.packs else 0.0


def _packed(documents: UnitDocuments, rules: PlanRules) -> _Packed:
    runs = trained_runs(documents)
    pieces = rules.strategy.pieces(documents.lengths, runs, rules.max_length, rules.overlong)
    if not len(pieces.length):
        return _Packed(0.0, 0)
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
        return _Packed(0.0, 0)
    return _Packed(len(tokens) - 1 + float(tokens[-1]) / rules.max_length, int(tokens.sum()))


def _only(documents: UnitDocuments, kept: NDArray[np.bool_]) -> UnitDocuments:
    kept_runs = np.repeat(kept, documents.run_counts)
    return UnitDocuments(
        rows=documents.rows[kept],
        lengths=documents.lengths[kept],
        checksums=documents.checksums[kept],
        run_counts=documents.run_counts[kept],
        runs=documents.runs[kept_runs],
    )
