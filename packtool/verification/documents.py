"""Whole documents, put together again from their stretches: does each tile its document, and is it cut by the rules?

Takes blocks of sorted stretches, a document never in two, and remembers sums alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.planning import PlanRules
from packtool.shards import Int64s
from packtool.verification.conservation import DocumentTally
from packtool.verification.places import Places
from packtool.verification.report import Bools, Findings
from packtool.verification.stretches import REASONS, Stretches

_TRUNCATED = REASONS.index("truncated")
_OVERLONG = REASONS.index("overlong")
_NOTHING_TO_TRAIN = REASONS.index("nothing_to_train")


@dataclass(frozen=True, slots=True)
class Documents:
    """The documents of a block; N of them, of S stretches in the order of their offsets."""

    stretches: Stretches
    firsts: Int64s
    """int64 [N], where each document's stretches begin."""
    counts: Int64s
    """int64 [N], how many it has."""
    lengths: Int64s
    """int64 [N], its tokens, as far as its last stretch goes."""
    owner: Int64s
    """int64 [S], the document of each stretch."""

    @classmethod
    def of(cls, stretches: Stretches) -> "Documents":
        """The documents of a block of stretches."""
        begins = np.ones(len(stretches), dtype=np.bool_)
        begins[1:] = stretches["doc_id"][1:] != stretches["doc_id"][:-1]
        firsts = np.flatnonzero(begins)
        counts = np.diff(firsts, append=len(stretches))
        lasts = firsts + counts - 1
        lengths = stretches["offset"][lasts].astype(np.int64) + stretches["length"][lasts]
        return cls(stretches, firsts, counts, lengths, np.repeat(np.arange(len(firsts)), counts))

    def any_of(self, of_stretch: Bools) -> Bools:
        """bool [N]: documents of which it is true of a stretch."""
        found: Bools = np.logical_or.reduceat(of_stretch, self.firsts)
        return found

    def sum_of(self, of_stretch: NDArray[Any]) -> Int64s:
        """int64 [N]: sums over a document's stretches."""
        found: Int64s = np.add.reduceat(of_stretch, self.firsts, dtype=np.int64)
        return found


def check_documents(findings: Findings, places: Places, documents: Documents) -> None:
    """Every document from its first token on, without a gap and nothing twice; texts to their end."""
    stretches = documents.stretches
    finding = findings["documents"]
    finding.checked += len(documents.firsts)
    offsets = stretches["offset"].astype(np.int64)
    ends = offsets + stretches["length"]
    expected = np.zeros_like(offsets)
    expected[1:] = ends[:-1]
    expected[documents.firsts] = 0

    def describe(at: int) -> str:
        doc_id, offset, end = stretches["doc_id"][at], offsets[at], expected[at]
        if offset < end:
            return f"{places.of(stretches[at])}: document {doc_id} again, overlapping itself"
        return (
            f"{places.of(stretches[at])}: starts at token {offset} of document {doc_id}, "
            f"whose tokens {end} to {offset - 1} are in no pack and no reject"
        )

    finding.fault_where(offsets != expected, describe)
    # A record that never became tokens is alone.
    beside = (stretches["length"] == 0) & (documents.counts[documents.owner] > 1)
    finding.fault_where(
        beside,
        lambda at: f"{places.of(stretches[at])}: document {stretches['doc_id'][at]} is elsewhere, too",
    )
    lasts = stretches[documents.firsts + documents.counts - 1]
    findings["text_ends"].checked += len(lasts)
    findings["text_ends"].fault_where(
        ~lasts["ends_text"],
        lambda at: f"{places.of(lasts[at])}: document {lasts['doc_id'][at]} does not end with a trained EOS",
    )


def tally_documents(tally: DocumentTally, documents: Documents) -> None:
    """Count the documents of a block."""
    stretches = documents.stretches
    in_packs = stretches["reason"] == 0
    out = documents.any_of(in_packs)
    tally.out += int(out.sum())
    tally.truncated += int((documents.any_of(stretches["reason"] == _TRUNCATED) & out).sum())
    packed = documents.sum_of(np.where(in_packs, stretches["length"], 0))
    for counter, lengths in ((tally.lengths, documents.lengths[out]), (tally.packed_lengths, packed[out])):
        values, counts = np.unique(lengths, return_counts=True)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            counter[value] += count


def check_pieces(findings: Findings, places: Places, rules: PlanRules, documents: Documents) -> None:
    """Where documents may be cut, and what may be left out, under the strategy and ``--overlong``."""
    stretches = documents.stretches
    finding = findings["pieces"]
    finding.checked += len(stretches)
    limit = rules.max_length
    reason = stretches["reason"]
    offset, length = stretches["offset"].astype(np.int64), stretches["length"].astype(np.int64)
    whole = documents.lengths[documents.owner]
    alone = documents.counts[documents.owner] == 1
    rejected = reason != 0
    is_whole = alone & (length == whole)
    too_long = whole > limit
    # A record without tokens, and a document that trains nothing, are left out whole, whatever their length.
    right = is_whole & rejected & (reason != _OVERLONG) & (reason != _TRUNCATED)
    if rules.strategy.keeps_untrained:
        # It is cut where packs end, which the plan tells.
        right |= (reason == 0) | (reason == _NOTHING_TO_TRAIN)
    elif rules.overlong == "split":
        piece = (offset % limit == 0) & (length == np.minimum(limit, whole - offset))
        right |= piece & ((reason == 0) | (reason == _NOTHING_TO_TRAIN))
    else:
        right |= (reason == 0) & is_whole & ~too_long
        last = offset + length == whole
        if rules.overlong in ("truncate", "truncate_turns"):
            kept = length == limit if rules.overlong == "truncate" else length <= limit
            start = (offset == 0) & kept & too_long & (documents.counts[documents.owner] == 2)
            tail = (offset > 0) & last & too_long & (reason == _TRUNCATED)
            right |= tail | (start & ((reason == 0) | (reason == _NOTHING_TO_TRAIN)))
        if rules.overlong in ("drop", "truncate_turns"):
            right |= is_whole & too_long & (reason == _OVERLONG)

    def describe(at: int) -> str:
        what = REASONS[reason[at]] if rejected[at] else "in a pack"
        return (
            f"{places.of(stretches[at])}: document {stretches['doc_id'][at]} has {whole[at]} tokens, of which "
            f"{offset[at]} to {offset[at] + length[at] - 1} are {what}; {rules.strategy.name} with overlong "
            f"{rules.overlong} and max_length {limit} does not cut so"
        )

    finding.fault_where(~right, describe)
