"""The plan of a run: stored units in, which segments go into which pack and which shard out, all on disk.

Sees lengths and trained runs, never ids. Documents are dealt to groups, every group is planned by the
strategy, and what is in no pack is listed. Nothing held in memory grows with the data but the groups' sizes.

    FOLDER/segments.bin    SEGMENT records, pack after pack
           packs.bin       int64, the first segment of every pack, and one past the last segment
           cuts.bin        CUT records of what was cut before planning, by document, then offset
           untrained.bin   CUT records of packs that would have had no trained token, in no order
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packtool.errors import PacktoolError
from packtool.files import naming
from packtool.hashing import order_hash
from packtool.packing import Cut, Histogram, OpenPack, Overlong, Strategy, TrainedRuns, trained_in
from packtool.token_store import TokenStore, UnitDocuments, UnitSummary

GROUP_TOKENS = 64_000_000
GROUP_PACKS = 4_096
GROUP_DOCUMENTS = 2_000_000
"""A group of very short documents is smaller than asked for, so that planning it stays within bounds."""
SHARD_TOKENS = 64_000_000
SMALL_SHARD_TOKENS = 4_000_000
"""A small dataset is cut into up to four shards of at least so many tokens, which are written at the same time."""
_FLUSH_BYTES = 32 << 20
_BLOCK_CUTS = 1 << 16
_BLOCK_PACKS = 1 << 20
_SHORT = 1 << 16
"""Documents with more tokens are so few that they can be counted one by one."""

Records = NDArray[np.void]
"""An array of structured records; ``take`` moves them in a tenth of the time that an index in brackets takes."""

SEGMENT = np.dtype(
    [
        ("doc_id", "<i8"),
        ("start", "<i8"),  # its first token, counted in its unit
        ("unit", "<i4"),  # an index into the run's units
        ("offset", "<i4"),  # its first token, counted in its document
        ("length", "<i4"),
        ("run_count", "<i4"),  # its document's trained runs
        ("run_first", "<i4"),  # of several runs: the first one, counted in its unit; of one: where it starts
        ("run_stop", "<i4"),  # of one run: one past its last token; both are counted in the document
    ]
)
"""A segment in a pack, with all that assembly needs to fetch its tokens and labels.

Most documents have one run (texts, instructions): with it at hand, assembly need not read it anywhere.
"""
CUT = np.dtype(
    [
        ("doc_id", "<i8"),
        ("checksum", "<u8"),  # h of the stretch
        ("offset", "<i4"),
        ("length", "<i4"),
        ("whole", "<i4"),  # tokens of the whole document
        ("reason", "i1"),
    ]
)
"""A stretch that is in no pack, and why."""
_PIECE = np.dtype([*SEGMENT.descr, ("document", "<i4"), ("whole", "<i4"), ("trained", "<i4")])
"""A segment-to-be: with its document's index in its unit and length, and how many of its own tokens train."""


@dataclass(frozen=True, slots=True)
class PlacedUnit:
    """A stored unit and its place in the run."""

    source: int
    first_row: int
    """The doc id of its row 0."""
    summary: UnitSummary


@dataclass(frozen=True, slots=True)
class PlanRules:
    """The options a plan depends on, as resolved for a run."""

    strategy: Strategy
    max_length: int
    overlong: Overlong
    shuffle: bool
    seed: int
    max_segments: int | None
    group_tokens: int | None

    @property
    def tokens_a_group(self) -> int:
        """How many tokens are planned together."""
        return self.group_tokens or max(GROUP_TOKENS, GROUP_PACKS * self.max_length)

    @property
    def is_stream(self) -> bool:
        """Whether all documents are one stream, in the order of the sources."""
        return self.strategy.stream is not None and not self.shuffle


@dataclass(frozen=True, slots=True)
class GroupSize:
    """What a group became."""

    packs: int
    tokens: int


@dataclass(slots=True)
class PlanCounts:
    """What a plan holds, counted while it is made."""

    documents: int = 0
    truncated_documents: int = 0
    whole_documents: int = 0
    """Documents that are in the packs as one segment each, with all their tokens."""
    segments: int = 0
    tokens: int = 0
    most_segments: int = 0
    document_lengths: Counter[int] = field(default_factory=Counter)
    """Documents in the packs, by their length before any cut."""
    segment_lengths: Counter[int] = field(default_factory=Counter)
    piece_lengths: Counter[int] = field(default_factory=Counter)
    """What was to be planned and is in a pack: the lower bound follows from it."""
    cut_rows: Counter[str] = field(default_factory=Counter)
    cut_tokens: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan on disk."""

    folder: Path
    groups: tuple[GroupSize, ...]
    counts: PlanCounts
    lower_bound_packs: int
    first_overlong: tuple[int, int] | None
    """(doc id, tokens) of the first document longer than max_length, where one was cut as ``overlong``."""

    @property
    def packs(self) -> int:
        """Packs of all groups."""
        return sum(group.packs for group in self.groups)

    def segments_of_packs(self) -> Iterator[NDArray[np.int64]]:
        """How many segments each pack has, in blocks."""
        with (self.folder / "packs.bin").open("rb") as file:
            last = np.fromfile(file, "<i8", 1)
            while len(block := np.fromfile(file, "<i8", _BLOCK_PACKS)):
                yield np.diff(block, prepend=last)
                last = block[-1:]

    def cuts(self) -> Iterator[Records]:
        """What was cut before planning, in blocks, by document, then offset."""
        with (self.folder / "cuts.bin").open("rb") as file:
            while raw := file.read(CUT.itemsize * _BLOCK_CUTS):
                yield np.frombuffer(raw, CUT)

    def untrained(self) -> Iterator[Records]:
        """The segments of packs that were left out for want of a trained token, likewise."""
        cuts = np.fromfile(self.folder / "untrained.bin", CUT)
        order = np.lexsort((cuts["offset"], cuts["doc_id"]))
        for start in range(0, len(order), _BLOCK_CUTS):
            yield cuts.take(order[start : start + _BLOCK_CUTS])


def read_packs(folder: Path, first_pack: int, stop_pack: int) -> tuple[Records, NDArray[np.int32]]:
    """The segments of packs [first, stop) of the plan in ``folder``, and how many each pack has."""
    starts = np.fromfile(folder / "packs.bin", "<i8", stop_pack - first_pack + 1, offset=8 * first_pack)
    wanted = int(starts[-1] - starts[0]) if len(starts) else -1
    segments = np.fromfile(
        folder / "segments.bin", SEGMENT, max(wanted, 0), offset=SEGMENT.itemsize * int(starts[0]) if wanted > 0 else 0
    )
    if len(starts) != stop_pack - first_pack + 1 or len(segments) != wanted:
        # numpy reads what there is, and takes an error of the disk for the end of the file.
        raise PacktoolError(f"{folder}: the plan was cut short, or cannot be read; run again")
    return segments, np.diff(starts).astype(np.int32)


def make_plan(
    units: Sequence[PlacedUnit],
    store: TokenStore,
    rules: PlanRules,
    folder: Path,
    on_documents: Callable[[int], None],
) -> Plan:
    """Plan all documents of ``units``, which are in source order, into ``folder``, which is empty.

    Args:
        units: every stored unit of the run.
        store: where they are.
        rules: how to plan.
        folder: where the plan goes.
        on_documents: told how many documents were dealt so far.
    """
    with naming(folder), _PlanWriter(folder, store, units, rules) as writer:
        deal = _Stream(writer, rules) if rules.is_stream else _Groups(writer, rules, units)
        dealt = 0
        for index, unit in enumerate(units):
            deal.take(writer.pieces_of(index))
            dealt += unit.summary.documents
            on_documents(dealt)
        deal.finish()
        writer.settle_counts()
    counts = writer.counts
    bound = rules.strategy.bound(Histogram.from_counts(counts.piece_lengths), rules.max_length, rules.max_segments)
    return Plan(folder, tuple(writer.groups), counts, bound, writer.first_overlong)


class _PlanWriter:
    """Writes a plan group by group, and counts."""

    def __init__(self, folder: Path, store: TokenStore, units: Sequence[PlacedUnit], rules: PlanRules) -> None:
        self.folder = folder
        self.groups: list[GroupSize] = []
        self.counts = PlanCounts()
        self.first_overlong: tuple[int, int] | None = None
        self._store = store
        self._units = units
        self._rules = rules
        self._files: list[BinaryIO] = []
        self._document_lengths, self._piece_lengths, self._segment_lengths = (_LengthTally() for _ in range(3))

    def __enter__(self) -> "_PlanWriter":
        self.folder.mkdir(parents=True, exist_ok=True)
        self._segments, self._packs, self._cuts, self._untrained = (
            (self.folder / name).open("wb") for name in ("segments.bin", "packs.bin", "cuts.bin", "untrained.bin")
        )
        self._files = [self._segments, self._packs, self._cuts, self._untrained]
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with ExitStack() as closing_all:
            for file in self._files:
                closing_all.callback(file.close)
            if kind is None:
                self._packs.write(np.array([self.counts.segments], dtype="<i8").data)

    def pieces_of(self, index: int) -> Records:
        """The pieces of the documents of unit ``index``; what is cut from them is written and counted."""
        unit = self._units[index]
        documents = self._store.documents(unit.summary)
        rules, counts = self._rules, self.counts
        found = rules.strategy.pieces(documents.lengths, trained_runs(documents), rules.max_length, rules.overlong)
        pieces = np.empty(len(found.doc), _PIECE)
        starts = np.cumsum(documents.lengths, dtype=np.int64) - documents.lengths
        pieces["doc_id"] = unit.first_row + documents.rows[found.doc].astype(np.int64)
        pieces["start"] = starts[found.doc] + found.offset
        pieces["unit"], pieces["document"] = index, found.doc
        pieces["offset"], pieces["length"], pieces["trained"] = found.offset, found.length, found.trained
        pieces["whole"] = documents.lengths[found.doc]
        pieces["run_count"] = documents.run_counts[found.doc]
        pieces["run_first"], pieces["run_stop"] = (array[found.doc] for array in _run_places(documents))
        cuts = _Cuts(found.cut_doc, found.cut_offset, found.cut_length, found.cut_reason)
        self._write_cuts(self._cuts, index, documents, cuts)
        kept = found.doc[np.diff(found.doc, prepend=-1) > 0]
        counts.documents += len(kept)
        self._document_lengths.add(documents.lengths[kept])
        self._piece_lengths.add(found.length)
        cut_short = np.unique(found.cut_doc[found.cut_reason == Cut.truncated])
        counts.truncated_documents += len(np.intersect1d(cut_short, kept, assume_unique=True))
        return pieces

    def write_packs(self, segments: Records, pack_segments: NDArray[np.int32]) -> GroupSize:
        """Write packs whose ``segments`` are _PIECE records (see ``_segments``); says what was written."""
        segments, pack_segments = self._without_untrained(segments, pack_segments)
        counts = self.counts
        starts = np.cumsum(pack_segments, dtype=np.int64) - pack_segments + counts.segments
        self._packs.write(starts.astype("<i8").data)
        plain = np.empty(len(segments), SEGMENT)
        for name in SEGMENT.names or ():
            plain[name] = segments[name]
        self._segments.write(plain.data)
        counts.segments += len(segments)
        counts.whole_documents += int((segments["length"] == segments["whole"]).sum())
        counts.most_segments = max(counts.most_segments, int(pack_segments.max(initial=0)))
        self._segment_lengths.add(segments["length"])
        tokens = int(segments["length"].sum(dtype=np.int64))
        counts.tokens += tokens
        return GroupSize(len(pack_segments), tokens)

    def settle_counts(self) -> None:
        """Bring the counts to an end, without what packs that have no trained token took away.

        A document is out only if all of its tokens are; nothing that is out needs a place. Strategies that keep
        untrained segments plan whole documents, so a document here was one piece.
        """
        counts = self.counts
        counts.document_lengths = self._document_lengths.counts()
        counts.piece_lengths = self._piece_lengths.counts()
        counts.segment_lengths = self._segment_lengths.counts()
        self._untrained.flush()
        cuts = np.fromfile(self.folder / "untrained.bin", CUT)
        doc_ids, first, place = np.unique(cuts["doc_id"], return_index=True, return_inverse=True)
        left_out = np.bincount(place, cuts["length"], len(doc_ids)).astype(np.int64)
        whole = cuts["whole"][first]
        gone = left_out == whole
        counts.documents -= int(gone.sum())
        counts.document_lengths.subtract(whole[gone].tolist())
        counts.document_lengths += Counter()  # drops what came to nothing
        counts.piece_lengths.subtract(whole.tolist())
        counts.piece_lengths.update((whole - left_out)[~gone].tolist())
        counts.piece_lengths += Counter()

    def _write_cuts(self, file: BinaryIO, index: int, documents: UnitDocuments, found: "_Cuts") -> None:
        unit = self._units[index]
        cuts = np.empty(len(found.cut_doc), CUT)
        cuts["doc_id"] = unit.first_row + documents.rows[found.cut_doc].astype(np.int64)
        cuts["offset"], cuts["length"], cuts["reason"] = found.cut_offset, found.cut_length, found.cut_reason
        cuts["whole"] = documents.lengths[found.cut_doc]
        cuts["checksum"] = documents.checksums[found.cut_doc]
        partial = np.flatnonzero(cuts["length"] != cuts["whole"])
        if len(partial):
            starts = np.cumsum(documents.lengths, dtype=np.int64) - documents.lengths
            cuts["checksum"][partial] = self._store.checksums(
                unit.summary,
                starts[found.cut_doc[partial]] + cuts["offset"][partial],
                cuts["length"][partial],
                cuts["offset"][partial],
            )
        file.write(cuts.data)
        for reason in Cut:
            chosen = cuts["reason"] == reason
            if rows := int(chosen.sum()):
                self.counts.cut_rows[reason.name] += rows
                self.counts.cut_tokens[reason.name] += int(cuts["length"][chosen].sum(dtype=np.int64))
        overlong = np.flatnonzero(cuts["reason"] == Cut.overlong)
        if self.first_overlong is None and len(overlong):
            first = cuts[overlong[0]]
            self.first_overlong = (int(first["doc_id"]), int(first["length"]))

    def _without_untrained(
        self, segments: Records, pack_segments: NDArray[np.int32]
    ) -> tuple[Records, NDArray[np.int32]]:
        if not self._rules.strategy.keeps_untrained or not len(segments):
            return segments, pack_segments
        starts = np.cumsum(pack_segments, dtype=np.int64) - pack_segments
        trains = segments["trained"] > 0
        doubtful = np.repeat(~np.logical_or.reduceat(trains, starts), pack_segments)
        if not doubtful.any():
            return segments, pack_segments
        for _, documents, chosen in self._by_unit(segments, np.flatnonzero(doubtful)):
            part = segments.take(chosen)
            trained = trained_in(trained_runs(documents), part["document"], part["offset"], part["length"])
            trains[chosen] = trained > 0
        kept = np.logical_or.reduceat(trains, starts)
        kept_segments = np.repeat(kept, pack_segments)
        for unit, documents, chosen in self._by_unit(segments, np.flatnonzero(~kept_segments)):
            part = segments.take(chosen)
            reasons = np.full(len(part), Cut.nothing_to_train, dtype=np.int8)
            cuts = _Cuts(part["document"], part["offset"], part["length"], reasons)
            self._write_cuts(self._untrained, unit, documents, cuts)
        return segments.take(np.flatnonzero(kept_segments)), pack_segments[kept]

    def _by_unit(
        self, segments: Records, chosen: NDArray[np.int64]
    ) -> Iterator[tuple[int, UnitDocuments, NDArray[np.int64]]]:
        """The chosen segments, those of one unit at a time: (unit, its documents, indices)."""
        units = segments["unit"][chosen]
        for unit in np.unique(units):
            yield int(unit), self._store.documents(self._units[unit].summary), chosen[units == unit]


class _Cuts(NamedTuple):
    """Stretches of a unit's documents that are in no pack, named as in packing.Pieces."""

    cut_doc: NDArray[np.int32]
    cut_offset: NDArray[np.int32]
    cut_length: NDArray[np.int32]
    cut_reason: NDArray[np.int8]


def trained_runs(documents: UnitDocuments) -> TrainedRuns:
    """The trained runs of a unit as the strategies take them."""
    return TrainedRuns(
        documents.run_counts,
        np.ascontiguousarray(documents.runs[:, 0]),
        np.ascontiguousarray(documents.runs[:, 1]),
    )


def _run_places(documents: UnitDocuments) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """``run_first`` and ``run_stop`` of each document, as in SEGMENT."""
    counts = documents.run_counts
    first = np.cumsum(counts, dtype=np.int32) - counts
    stop = np.zeros_like(first)
    one = np.flatnonzero(counts == 1)
    runs = documents.runs[first[one]]
    first[one], stop[one] = runs[:, 0], runs[:, 1]
    return first, stop


class _Groups:
    """Documents dealt to groups, each of which is planned by itself."""

    def __init__(self, writer: _PlanWriter, rules: PlanRules, units: Sequence[PlacedUnit]) -> None:
        self._writer = writer
        self._rules = rules
        tokens = sum(unit.summary.tokens for unit in units)
        documents = sum(unit.summary.documents for unit in units)
        self._count = max(1, -(-tokens // rules.tokens_a_group), -(-documents // GROUP_DOCUMENTS))
        self._total = max(1, tokens)
        self._tokens_before = 0
        self._pending: dict[int, list[Records]] = {}
        self._pending_bytes = 0

    def take(self, pieces: Records) -> None:
        """Deal the next unit's pieces."""
        groups = self._groups_of(pieces)
        if self._count <= 1 << 16:
            groups = groups.astype(np.uint16)  # which numpy sorts by counting
        order = np.argsort(groups, kind="stable")
        bounds = np.searchsorted(groups[order], np.arange(self._count + 1))
        for group in np.flatnonzero(np.diff(bounds)).tolist():
            part = pieces.take(order[bounds[group] : bounds[group + 1]])
            self._pending.setdefault(group, []).append(part)
            self._pending_bytes += part.nbytes
        if self._pending_bytes > _FLUSH_BYTES:
            self._flush()

    def finish(self) -> None:
        """Plan every group."""
        if self._count > 1:
            self._flush()
        for group in range(self._count):
            self._plan(group, self._pieces(group))

    def _groups_of(self, pieces: Records) -> NDArray[np.int64]:
        if self._rules.shuffle:
            # The high half of the hash, scaled to the number of groups: groups are stretches of the hash order.
            high = order_hash(self._rules.seed, pieces["doc_id"]) >> np.uint64(32)
            scaled = (high * np.uint64(self._count)) >> np.uint64(32)
            return scaled.view(np.int64)
        before = np.cumsum(pieces["length"], dtype=np.int64) - pieces["length"] + self._tokens_before
        # All pieces of a document go where its first one goes.
        is_first = np.ones(len(pieces), dtype=np.bool_)
        is_first[1:] = pieces["doc_id"][1:] != pieces["doc_id"][:-1]
        before = before[np.flatnonzero(is_first)][np.cumsum(is_first) - 1] if len(pieces) else before
        self._tokens_before += int(pieces["length"].sum(dtype=np.int64))
        groups: NDArray[np.int64] = np.minimum(before * self._count // self._total, self._count - 1)
        return groups

    def _path(self, group: int) -> Path:
        return self._writer.folder / f"group-{group:06d}.bin"

    def _flush(self) -> None:
        for group, parts in self._pending.items():
            with self._path(group).open("ab") as file:
                for part in parts:
                    file.write(part.data)
        self._pending.clear()
        self._pending_bytes = 0

    def _pieces(self, group: int) -> Records:
        parts = self._pending.pop(group, [])
        path = self._path(group)
        if path.exists():
            parts = [np.fromfile(path, _PIECE), *parts]
            path.unlink()
        return np.concatenate(parts) if parts else np.empty(0, _PIECE)

    def _plan(self, group: int, pieces: Records) -> None:
        if not len(pieces):
            return
        rules = self._rules
        if rules.shuffle:
            pieces = pieces.take(np.argsort(order_hash(rules.seed, pieces["doc_id"]), kind="stable"))
        packing = rules.strategy.plan(pieces["length"].copy(), rules.max_length, rules.max_segments)
        segments = _segments(pieces, packing.items, packing.offsets, packing.lengths)
        pack_segments = packing.counts
        if rules.shuffle:
            # Packs have numbers of their own below zero, where no doc id is.
            numbers = -1 - ((np.int64(group) << np.int64(32)) + np.arange(len(pack_segments)))
            order = np.argsort(order_hash(rules.seed, numbers), kind="stable")
            segments, pack_segments = _permuted(segments, pack_segments, order)
        self._writer.groups.append(self._writer.write_packs(segments, pack_segments))


class _Stream:
    """Documents as one stream over the whole input, planned unit by unit."""

    def __init__(self, writer: _PlanWriter, rules: PlanRules) -> None:
        self._writer = writer
        self._rules = rules
        self._open = OpenPack()
        self._open_segments = np.empty(0, _PIECE)
        self._group = GroupSize(0, 0)

    def take(self, pieces: Records) -> None:
        """Plan the next unit's pieces; packs that they close are written."""
        rules = self._rules
        if not len(pieces) or rules.strategy.stream is None:
            return
        part = rules.strategy.stream(pieces["length"].copy(), rules.max_length, rules.max_segments, self._open)
        segments = np.concatenate([self._open_segments, _segments(pieces, part.items, part.offsets, part.lengths)])
        closed = int(part.counts.sum(dtype=np.int64))
        self._write(segments[:closed], part.counts)
        self._open, self._open_segments = part.open, segments[closed:]

    def finish(self) -> None:
        """Write the last pack."""
        if len(self._open_segments):
            self._write(self._open_segments, np.array([len(self._open_segments)], dtype=np.int32))
        self._close_group()

    def _write(self, segments: Records, pack_segments: NDArray[np.int32]) -> None:
        written = self._writer.write_packs(segments, pack_segments)
        self._group = GroupSize(self._group.packs + written.packs, self._group.tokens + written.tokens)
        if self._group.tokens >= self._rules.tokens_a_group:
            self._close_group()

    def _close_group(self) -> None:
        if self._group.packs:
            self._writer.groups.append(self._group)
        self._group = GroupSize(0, 0)


def _segments(
    pieces: Records, items: NDArray[np.int32], offsets: NDArray[np.int32] | None, lengths: NDArray[np.int32] | None
) -> Records:
    """The segments that a strategy made of ``pieces``, as _PIECE records.

    ``trained`` is right for whole pieces and those of documents with one run; for a stretch of any other it is 0,
    which means unknown.
    """
    segments = pieces.take(items)
    if offsets is None or lengths is None:
        return segments
    cut = np.flatnonzero(lengths != segments["length"])
    segments["offset"] += offsets
    segments["start"] += offsets
    segments["length"] = lengths
    part = segments[cut]
    # Nothing inside a segment predicts its first token, which so carries no loss.
    first = np.maximum(part["offset"] + 1, part["run_first"])
    last = np.minimum(part["offset"] + part["length"], part["run_stop"])
    segments["trained"][cut] = np.where(part["run_count"] == 1, np.maximum(last - first, 0), 0)
    return segments


def _permuted(
    segments: Records, pack_segments: NDArray[np.int32], order: NDArray[np.int64]
) -> tuple[Records, NDArray[np.int32]]:
    """The packs in another order; segments keep theirs inside a pack."""
    starts = np.cumsum(pack_segments, dtype=np.int64) - pack_segments
    counts = pack_segments[order]
    new_starts = np.cumsum(counts, dtype=np.int64) - counts
    places = np.repeat(starts[order] - new_starts, counts) + np.arange(len(segments))
    return segments.take(places), counts


class _LengthTally:
    """How many items have each length, added up block by block."""

    def __init__(self) -> None:
        self._short = np.zeros(_SHORT, dtype=np.int64)
        self._long: Counter[int] = Counter()

    def add(self, lengths: NDArray[np.int32]) -> None:
        is_short = lengths < _SHORT
        if not is_short.all():
            self._long.update(lengths[~is_short].tolist())
            lengths = lengths[is_short]
        found = np.bincount(lengths)
        self._short[: len(found)] += found

    def counts(self) -> Counter[int]:
        lengths = np.flatnonzero(self._short)
        return Counter(dict(zip(lengths.tolist(), self._short[lengths].tolist(), strict=True)) | self._long)


@dataclass(frozen=True, slots=True)
class ShardRange:
    """Packs [first, stop) of the plan, which make one shard."""

    first: int
    stop: int


def cut_shards(
    groups: Sequence[GroupSize], shard_tokens: int | None, shards: int | None, row_group_packs: int
) -> tuple[int, tuple[ShardRange, ...]]:
    """Which packs go into which shard.

    Args:
        groups: the plan's groups, in order; without ``shards`` each is one shard or more.
        shard_tokens: about how many tokens a shard has; None: SHARD_TOKENS, in a small dataset fewer.
        shards: how many shards there are in all, equal to within a row group; None: as many as follow.
        row_group_packs: packs in a row group.

    Returns:
        (packs in a row group, ranges). There are fewer packs in a row group than asked for where the shards
        could not be equal otherwise.

    Raises:
        ValueError: there are fewer packs than ``shards``.
    """
    packs = sum(group.packs for group in groups)
    if shards is not None:
        if packs < shards:
            raise ValueError(f"{packs} packs cannot be cut into {shards} shards")
        row_group_packs = max(1, min(row_group_packs, packs // shards))
        return row_group_packs, tuple(_even(0, packs, shards, row_group_packs))
    if shard_tokens is None:
        quarter = sum(group.tokens for group in groups) // 4
        shard_tokens = min(SHARD_TOKENS, max(SMALL_SHARD_TOKENS, quarter))
    ranges: list[ShardRange] = []
    first = 0
    for group in groups:
        count = min(max(1, round(group.tokens / shard_tokens)), -(-group.packs // row_group_packs))
        ranges += _even(first, first + group.packs, count, row_group_packs) if group.packs else []
        first += group.packs
    return row_group_packs, tuple(ranges)


def _even(first: int, stop: int, parts: int, row_group_packs: int) -> Iterator[ShardRange]:
    row_groups = -(-(stop - first) // row_group_packs)
    for part in range(parts):
        start = first + row_groups * part // parts * row_group_packs
        end = min(stop, first + row_groups * (part + 1) // parts * row_group_packs)
        yield ShardRange(start, end)
