"""The accounts of a packed dataset: adds up what packs and rejects hold, and says where a manifest differs.

Takes packs and rejects in one pass each and remembers sums, not documents; knows nothing of files or
reports.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from packtool.contract import IGNORED
from packtool.errors import BAD_RECORD_REASONS
from packtool.hashing import U64, odd_mix, token_checksums
from packtool.manifest import Histogram, Manifest
from packtool.packing import STRATEGIES
from packtool.packing import Histogram as LengthCounts
from packtool.shards import Int64s, PackBatch
from packtool.source_ranges import SourceRanges
from packtool.verification.stretches import Stretches

_UINT64 = 2**64


class _SourceSums:
    """Per source: documents, tokens and the conservation checksum."""

    def __init__(self, count: int) -> None:
        self.documents = np.zeros(count, dtype=np.int64)
        self.tokens = np.zeros(count, dtype=np.int64)
        self.checksums = np.zeros(count, dtype=np.uint64)

    def add(self, sources: Int64s, doc_ids: Int64s, offsets: Int64s, tokens: Int64s, checksums: U64) -> None:
        """Add stretches; those of no source (-1) are nobody's."""
        known = sources >= 0
        if not known.all():
            sources, doc_ids, offsets = sources[known], doc_ids[known], offsets[known]
            tokens, checksums = tokens[known], checksums[known]
        np.add.at(self.documents, sources, ((offsets == 0) & (tokens > 0)).astype(np.int64))
        np.add.at(self.tokens, sources, tokens)
        np.add.at(self.checksums, sources, odd_mix(doc_ids) * checksums)

    def add_sums(self, other: "_SourceSums") -> None:
        """Add what another one holds."""
        self.documents += other.documents
        self.tokens += other.tokens
        self.checksums += other.checksums


class RejectTally:
    """What the rows of rejects.jsonl add up to."""

    def __init__(self, sources: int) -> None:
        """Begin with nothing, for a dataset of ``sources`` sources."""
        self.rows: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.tokenless = np.zeros(sources, dtype=np.int64)
        """int64 [sources], records that never became tokens."""
        self.sums = _SourceSums(sources)

    def add(self, reasons: Sequence[str], sources: Int64s, rows: Stretches) -> None:
        """Add rows; ``sources`` is the index of each one's source, or -1."""
        self.rows.update(reasons)
        for reason, tokens in zip(reasons, rows["length"].tolist(), strict=True):
            self.tokens[reason] += tokens
        empty = rows["length"] == 0
        np.add.at(self.tokenless, sources[empty & (sources >= 0)], 1)
        full = rows[~empty]
        lengths, offsets = full["length"].astype(np.int64), full["offset"].astype(np.int64)
        self.sums.add(sources[~empty], full["doc_id"], offsets, lengths, full["ids"])

    @property
    def bad_records(self) -> int:
        """Rows of records that are bad."""
        return sum(count for reason, count in self.rows.items() if reason in BAD_RECORD_REASONS)


class PackTally:
    """What the packs of a shard add up to, padding left out; the tallies of shards add up to the dataset's."""

    def __init__(self, ranges: SourceRanges, sources: int) -> None:
        """Begin with nothing."""
        self.sums = _SourceSums(sources)
        self.packs = 0
        self.tokens = 0
        self.trained = 0
        self.segments = 0
        self.max_segments = 0
        self._lengths = np.zeros(1, dtype=np.int64)
        self._ranges = ranges

    def add(self, batch: PackBatch) -> None:
        """Add packs whose segments are sound: lengths of at least 1 that sum to the packs' tokens."""
        checksums = token_checksums(batch.input_ids, batch.seq_lengths, batch.doc_offsets)
        real = ~batch.is_padding
        lengths = batch.seq_lengths[real].astype(np.int64)
        doc_ids = batch.doc_ids[real]
        offsets = batch.doc_offsets[real].astype(np.int64)
        self.sums.add(self._ranges.find(doc_ids), doc_ids, offsets, lengths, checksums[real])
        self.packs += batch.packs
        self.tokens += int(lengths.sum())
        self.trained += int(np.count_nonzero(batch.labels != IGNORED))
        self.segments += len(lengths)
        self._add_lengths(np.bincount(lengths))
        first_segments = np.cumsum(batch.pack_segments, dtype=np.int64) - batch.pack_segments
        if batch.packs:
            in_pack = np.add.reduceat(real, first_segments, dtype=np.int64)
            self.max_segments = max(self.max_segments, int(in_pack.max()))

    def add_tally(self, other: "PackTally") -> None:
        """Add what another one holds."""
        self.sums.add_sums(other.sums)
        self.packs += other.packs
        self.tokens += other.tokens
        self.trained += other.trained
        self.segments += other.segments
        self.max_segments = max(self.max_segments, other.max_segments)
        self._add_lengths(other._lengths.copy())

    def _add_lengths(self, counts: Int64s) -> None:
        if len(counts) > len(self._lengths):
            counts[: len(self._lengths)] += self._lengths
            self._lengths = counts
        else:
            self._lengths[: len(counts)] += counts

    @property
    def segment_lengths(self) -> Histogram:
        """How many segments have each length."""
        lengths = np.flatnonzero(self._lengths)
        return Histogram(lengths=tuple(lengths.tolist()), counts=tuple(self._lengths[lengths].tolist()))

    @property
    def length_counts(self) -> dict[int, int]:
        """The same as a dictionary."""
        return _listed(self.segment_lengths)


@dataclass(slots=True)
class DocumentTally:
    """What whole documents add up to."""

    out: int = 0
    """Documents of which a segment is in the packs."""
    truncated: int = 0
    """Those of them whose end was cut off."""
    lengths: Counter[int] = field(default_factory=Counter)
    """How many of them have each length, with what is not in the packs."""
    packed_lengths: Counter[int] = field(default_factory=Counter)
    """The same, without it."""


@dataclass(frozen=True, slots=True)
class Total:
    """One number of the manifest beside the one that was found."""

    what: str
    stated: object
    found: object

    @property
    def agrees(self) -> bool:
        """Whether they are equal."""
        return self.stated == self.found


def totals(
    manifest: Manifest, rejects: RejectTally, shards: Sequence[PackTally], whole: PackTally, documents: DocumentTally
) -> Iterator[Total]:
    """Every total of the manifest beside what packs and rejects say, sources first.

    A record is bad, or is one document in; a document in is out or left out. Tokens cut off as ``truncated``
    are that, all other rejected ones are left out.

    Args:
        manifest: what is stated.
        rejects: the sums of the rejects.
        shards: the sums of every shard's packs.
        whole: the same over all shards.
        documents: what the stretches of documents add up to.
    """
    tokens = manifest.tokens
    for index, source in enumerate(manifest.sources):
        found_documents = int(rejects.sums.documents[index] + whole.sums.documents[index])
        checksum = (int(rejects.sums.checksums[index]) + int(whole.sums.checksums[index])) % _UINT64
        where = f"source {source.name!r}: "
        yield Total(where + "documents", source.documents, found_documents)
        yield Total(where + "tokens", source.tokens, int(rejects.sums.tokens[index] + whole.sums.tokens[index]))
        yield Total(where + "checksum", source.checksum, checksum)
        yield Total(where + "records", source.records, found_documents + int(rejects.tokenless[index]))
    for shard, packs in zip(manifest.shards, shards, strict=True):
        where = f"{shard.name}: "
        yield Total(where + "packs", shard.packs, packs.packs)
        yield Total(where + "tokens", shard.tokens, packs.tokens)
        yield Total(where + "trained_tokens", shard.trained_tokens, packs.trained)
    found = whole.segment_lengths
    yield Total("packs", manifest.packs, whole.packs)
    yield Total("tokens.out", tokens.out, whole.tokens)
    yield Total("tokens.trained", tokens.trained, whole.trained)
    yield Total("segments", manifest.segments, whole.segments)
    yield Total("max_segments", manifest.max_segments, whole.max_segments)
    yield Total("longest_segment", manifest.longest_segment, max(found.lengths, default=0))
    yield Total("segment_lengths", _listed(manifest.segment_lengths), _listed(found))
    yield Total("documents.out", manifest.documents.out, documents.out)
    yield Total("document_lengths", _listed(manifest.document_lengths), _counted(documents.lengths))
    yield Total("bad_records", manifest.bad_records, rejects.bad_records)
    yield Total("rejected", _sorted(manifest.rejected), _sorted(rejects.rows))
    yield Total("rejected_tokens", _sorted(manifest.rejected_tokens), _sorted(rejects.tokens))
    yield Total("records", manifest.records, sum(source.records for source in manifest.sources))
    into = manifest.documents.into
    yield Total("documents.into", into, manifest.records - manifest.bad_records)
    yield Total("documents.left_out", manifest.documents.left_out, into - manifest.documents.out)
    yield Total("documents.truncated", manifest.documents.truncated, documents.truncated)
    yield Total("tokens.into", tokens.into, sum(source.tokens for source in manifest.sources))
    truncated = rejects.tokens["truncated"]
    yield Total("tokens.truncated", tokens.truncated, truncated)
    yield Total("tokens.left_out", tokens.left_out, rejects.tokens.total() - truncated)
    yield Total("lower_bound_packs", manifest.lower_bound_packs, _lower_bound(manifest, whole, documents))


def _lower_bound(manifest: Manifest, whole: PackTally, documents: DocumentTally) -> int:
    """Anew, from what is in the packs: segments, or whole documents where the strategy cuts them as it packs."""
    strategy = STRATEGIES[manifest.strategy]
    lengths = documents.packed_lengths if strategy.keeps_untrained else whole.length_counts
    most = manifest.options.get("max_segments")
    try:
        planned = LengthCounts.from_counts(lengths)
        return strategy.bound(planned, manifest.max_length, most if isinstance(most, int) and most > 0 else None)
    except ValueError:
        return -1  # a segment longer than max_length, which the check of sums tells of


def _counted(counts: Counter[int]) -> dict[int, int]:
    return {length: counts[length] for length in sorted(counts)}


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    """Reasons with nothing in them left out, since they may be listed or not."""
    return {reason: counts[reason] for reason in sorted(counts) if counts[reason]}


def _listed(histogram: Histogram) -> dict[int, int]:
    pairs = zip(histogram.lengths, histogram.counts, strict=True)
    return {length: count for length, count in pairs if count}
