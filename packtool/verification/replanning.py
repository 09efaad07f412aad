"""Plans the documents of a dataset again, group by group, and says which segment stands elsewhere than planned.

Takes whole documents in the order in which they are planned; holds one group. The strategies themselves are those
of ``packtool.packing``: a plan follows from lengths alone.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.hashing import order_hash
from packtool.packing import OpenPack, Packing
from packtool.planning import GROUP_DOCUMENTS, PlanRules
from packtool.shards import Int64s
from packtool.verification.documents import Documents
from packtool.verification.places import Places
from packtool.verification.report import Finding
from packtool.verification.stretches import Stretches

_UNWRITTEN = -1
"""The number of a pack that trained nothing."""


@dataclass(frozen=True, slots=True)
class Planned:
    """Items to be planned, and the stretches that they are in the dataset, in the same order."""

    lengths: Int64s
    """int64 [n], the tokens of each item."""
    counts: Int64s
    """int64 [n], stretches of each."""
    stretches: Stretches

    @classmethod
    def of(cls, documents: Documents, rules: PlanRules) -> "Planned":
        """What a strategy had to plan of documents that became as they are."""
        stretches = documents.stretches
        packed = stretches["reason"] == 0
        if not rules.strategy.keeps_untrained:
            chosen = stretches[packed]
            return cls(chosen["length"].astype(np.int64), np.ones(len(chosen), dtype=np.int64), chosen)
        # It plans whole documents. One that is left out whole in one row was left out before; one in several
        # rows was cut, so it was in packs that trained nothing.
        planned = documents.any_of(packed) | (documents.counts > 1)
        return cls(documents.lengths[planned], documents.counts[planned], stretches[planned[documents.owner]])


@dataclass(frozen=True, slots=True)
class Spots:
    """Where stretches should stand: S of them."""

    packs: Int64s
    """int64 [S], the number of the pack, or _UNWRITTEN."""
    places: Int64s
    """int64 [S], the number of the segment in it."""


class Replanner:
    """Plans again what comes, and compares."""

    def __init__(self, finding: Finding, places: Places, rules: PlanRules, tokens: int, documents: int) -> None:
        """Compare by ``rules``.

        Args:
            finding: where faults go.
            places: names places.
            rules: how it was planned.
            tokens: of all documents of the sources, those that are in no pack with them.
            documents: how many these are.
        """
        self.groups = 0
        """How many groups there were, where documents are dealt to groups."""
        self._finding = finding
        self._places = places
        self._rules = rules
        self._total = max(1, tokens)
        self._count = max(1, -(-tokens // rules.tokens_a_group), -(-documents // GROUP_DOCUMENTS))
        self._stopped = False
        # of groups
        self._group = 0
        self._held: list[Planned] = []
        self._tokens_before = 0
        self._packs_before = 0
        # of a stream
        self._open = OpenPack()
        self._open_is_packed = False
        self._open_reject: Any = None
        self._dropped = 0
        self._closed = 0

    def add(self, documents: Documents) -> None:
        """Take the next documents."""
        planned = Planned.of(documents, self._rules)
        self._finding.checked += len(planned.stretches)
        if self._stopped or not len(planned.lengths):
            return
        if self._rules.is_stream:
            self._add_to_stream(planned)
        else:
            self._add_to_groups(planned)

    def finish(self) -> None:
        """Plan what is held."""
        if self._held and not self._stopped:
            self._close_group()

    # --- groups ----------------------------------------------------------------------------------------------

    def _add_to_groups(self, planned: Planned) -> None:
        groups = self._groups_of(planned)
        starts = np.cumsum(planned.counts) - planned.counts
        ends = np.append(starts, len(planned.stretches))
        for group in np.unique(groups):
            if group != self._group and self._held:
                self._close_group()
            self._group = int(group)
            first, stop = np.searchsorted(groups, group), np.searchsorted(groups, group, side="right")
            self._held.append(
                Planned(
                    planned.lengths[first:stop], planned.counts[first:stop], planned.stretches[ends[first] : ends[stop]]
                )
            )

    def _groups_of(self, planned: Planned) -> Int64s:
        """int64 [n], rising: the group of each item."""
        starts = np.cumsum(planned.counts) - planned.counts
        doc_ids = planned.stretches["doc_id"][starts]
        if self._rules.shuffle:
            high = order_hash(self._rules.seed, doc_ids) >> np.uint64(32)
            return ((high * np.uint64(self._count)) >> np.uint64(32)).view(np.int64)
        before = np.cumsum(planned.lengths) - planned.lengths + self._tokens_before
        self._tokens_before += int(planned.lengths.sum())
        # All pieces of a document go where its first one goes.
        opens = np.ones(len(doc_ids), dtype=np.bool_)
        opens[1:] = doc_ids[1:] != doc_ids[:-1]
        before = before[np.flatnonzero(opens)][np.cumsum(opens) - 1]
        groups: Int64s = np.minimum(before * self._count // self._total, self._count - 1)
        return groups

    def _close_group(self) -> None:
        rules = self._rules
        lengths = np.concatenate([part.lengths for part in self._held])
        stretches = np.concatenate([part.stretches for part in self._held])
        self._held.clear()
        self.groups += 1
        try:
            packing = rules.strategy.plan(lengths.astype(np.int32), rules.max_length, rules.max_segments)
        except ValueError:
            self._stop("a segment is longer than max_length")
            return
        if not self._cut_as_planned(stretches, packing.items, packing.offsets, packing.lengths):
            return
        spots, packs = self._spots_of(packing, stretches)
        self._compare(stretches, spots)
        self._packs_before += packs

    def _spots_of(self, packing: Packing, stretches: Stretches) -> tuple[Spots, int]:
        """Where each of the group's stretches should stand, and how many packs the group has."""
        packs = np.repeat(np.arange(len(packing.counts)), packing.counts)
        firsts = np.cumsum(packing.counts, dtype=np.int64) - packing.counts
        # Segment k of the plan is of item items[k]; where items are whole each has one stretch, else they are in order.
        at = packing.items if packing.offsets is None else np.arange(len(packing.items))
        pack_of = np.empty(len(stretches), dtype=np.int64)
        place_of = np.empty(len(stretches), dtype=np.int64)
        pack_of[at] = packs
        place_of[at] = np.arange(len(packs)) - firsts[packs]
        rank = np.arange(len(packing.counts))
        if self._rules.shuffle:
            numbers = -1 - ((np.int64(self._group) << np.int64(32)) + rank)
            rank[np.argsort(order_hash(self._rules.seed, numbers), kind="stable")] = np.arange(len(rank))
        # Packs of which nothing is in the dataset trained nothing, and were not written.
        written = np.zeros(len(rank), dtype=np.bool_)
        written[rank[pack_of[stretches["reason"] == 0]]] = True
        number = np.where(written, np.cumsum(written) - 1 + self._packs_before, _UNWRITTEN)
        return Spots(number[rank[pack_of]], place_of), int(written.sum())

    # --- a stream --------------------------------------------------------------------------------------------

    def _add_to_stream(self, planned: Planned) -> None:
        rules, stretches = self._rules, planned.stretches
        if rules.strategy.stream is None:
            return
        begun = self._open
        try:
            part = rules.strategy.stream(planned.lengths.astype(np.int32), rules.max_length, rules.max_segments, begun)
        except ValueError:
            self._stop("a segment is longer than max_length")
            return
        if not self._cut_as_planned(stretches, part.items, part.offsets, part.lengths):
            return
        # Packs of this chunk, the one that was open first: where each begins among the chunk's segments.
        ends = np.cumsum(part.counts, dtype=np.int64) - begun.segments
        segments = np.arange(len(stretches))
        pack = np.searchsorted(ends, segments, side="right")
        starts = np.concatenate([[-begun.segments], ends])
        is_packed = np.zeros(len(ends) + 1, dtype=np.bool_)
        is_packed[0] = self._open_is_packed
        is_packed[pack[stretches["reason"] == 0]] = True
        if is_packed[0] and self._open_reject is not None:
            self._finding.fault(self._left_out(self._open_reject))
            self._open_reject = None
        dropped: Int64s = np.cumsum(~is_packed) - ~is_packed  # before each pack
        number = np.where(is_packed, self._closed + np.arange(len(is_packed)) - self._dropped - dropped, _UNWRITTEN)
        self._compare(stretches, Spots(number[pack], segments - starts[pack]))
        self._closed += len(ends)
        self._dropped += int((~is_packed[:-1]).sum())
        self._open = part.open
        self._open_is_packed = bool(is_packed[-1]) and part.open.segments > 0
        # Whether the pack that stays open is written is known only later.
        doubtful = np.flatnonzero((pack == len(ends)) & (stretches["reason"] != 0))
        if len(doubtful) and not self._open_is_packed:
            self._open_reject = stretches[doubtful[0]].copy()
        elif len(ends):
            self._open_reject = None

    # --- both ------------------------------------------------------------------------------------------------

    def _cut_as_planned(
        self,
        stretches: Stretches,
        items: NDArray[np.int32],
        offsets: NDArray[np.int32] | None,
        sizes: NDArray[np.int32] | None,
    ) -> bool:
        """Whether the stretches are cut where a strategy that cuts as it packs would."""
        if offsets is None or sizes is None:
            return True
        shared = min(len(stretches), len(items))
        wrong = (stretches["offset"][:shared] != offsets[:shared]) | (stretches["length"][:shared] != sizes[:shared])
        if not wrong.any() and len(stretches) == len(items):
            return True
        at = int(np.argmax(wrong)) if wrong.any() else shared
        stretch = stretches[min(at, len(stretches) - 1)]
        wanted = f"; expected tokens {offsets[at]} to {offsets[at] + sizes[at] - 1}" if at < len(items) else ""
        self._finding.fault(
            f"{self._places.of(stretch)}: tokens {stretch['offset']} to {stretch['offset'] + stretch['length'] - 1} "
            f"of document {stretch['doc_id']}{wanted}: {self._rules.strategy.name} cuts where a pack is full"
        )
        self._stopped = True
        return False

    def _compare(self, stretches: Stretches, spots: Spots) -> None:
        packed = stretches["reason"] == 0
        wrong = packed & ((stretches["pack"] != spots.packs) | (stretches["place"] != spots.places))

        def describe(at: int) -> str:
            stretch = stretches[at]
            return (
                f"{self._places.of(stretch)}: document {stretch['doc_id']} from token {stretch['offset']} on; "
                f"{self._rules.strategy.name} puts it in pack {spots.packs[at]} as segment {spots.places[at]}"
            )

        self._finding.fault_where(wrong, describe)
        self._finding.fault_where(
            ~packed & np.isin(spots.packs, spots.packs[packed]), lambda at: self._left_out(stretches[at])
        )

    def _left_out(self, stretch: Any) -> str:
        return (
            f"{self._places.of(stretch)}: document {stretch['doc_id']} from token {stretch['offset']} on is left out, "
            "but what shares its pack is not; a pack is left out whole"
        )

    def _stop(self, why: str) -> None:
        self._finding.miss(why)
        self._stopped = True
