"""The accounts of a packed dataset: adds up what packs and rejects hold, and says where a manifest differs.

Takes packs and rejects in one pass each and remembers sums, not documents; knows nothing of files or
reports.
"""

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packtool.contract import IGNORED
from packtool.errors import BAD_RECORD_REASONS
from packtool.hashing import U64, odd_mix, splitmix64, token_checksums
from packtool.manifest import Histogram, Manifest, SourceEntry
from packtool.rejects import Reject
from packtool.shards import Int64s, PackBatch

_INT64_MAX = 2**63 - 1
_UINT64 = 2**64
_ROWS = 4096  # rejects whose checksums are mixed at a time


class SourceRanges:
    """Which source a doc id belongs to."""

    def __init__(self, sources: Iterable[SourceEntry]) -> None:
        """Take the manifest's sources, whose ``first`` rises."""
        ranges = [(entry.first, min(entry.first + entry.rows, _INT64_MAX)) for entry in sources]
        self._first_list = [first for first, _ in ranges]
        self._firsts = np.array(self._first_list, dtype=np.int64)
        self._ends = np.array([end for _, end in ranges], dtype=np.int64)

    def find(self, doc_ids: Int64s) -> Int64s:
        """The index of each document's source, or -1 where no source has that id; int64, as ``doc_ids``."""
        # An empty source shares its first id with the next one: the last that starts at or before an id counts.
        found = np.searchsorted(self._firsts, doc_ids, side="right") - 1
        inside = found >= 0
        if len(self._ends):
            inside &= doc_ids < self._ends[found]
        result: Int64s = np.where(inside, found, -1)
        return result

    def find_one(self, doc_id: int) -> int:
        """The same for one document, without an array."""
        found = bisect_right(self._first_list, doc_id) - 1
        return found if found >= 0 and doc_id < self._ends[found] else -1


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


def _length_trace(lengths: NDArray[np.integer]) -> U64:
    """A fixed mix of each length, 0 for 0.

    Over the stretches [a, b) of a document that meet end to end, the sum of trace(b) - trace(a) is
    trace(length of the document): every inner border comes once with each sign. So one number proves a
    histogram of document lengths, with no document remembered.
    """
    return splitmix64(lengths.astype(np.uint64)) - splitmix64(np.zeros(1, dtype=np.uint64))


def _wrapped_sum(values: U64) -> int:
    return int(values.sum(dtype=np.uint64))


class RejectTally:
    """What the rows of rejects.jsonl add up to.

    Rows come in file order, by document, so a document's rows are seen together. Sixteen bytes are kept for
    each document whose rejected stretches are all ``nothing_to_train`` and begin at its first token: only the
    packs can tell whether such a document goes on in them.
    """

    def __init__(self, sources: int) -> None:
        """Begin with nothing, for a dataset of ``sources`` sources."""
        self.rows: Counter[str] = Counter()
        self.tokens: Counter[str] = Counter()
        self.bad_records = 0
        self.tokenless = np.zeros(sources, dtype=np.int64)
        """int64 [sources], records that never became tokens."""
        self.sums = _SourceSums(sources)
        self.out_documents = 0
        """Documents that are in the packs though their first token was rejected: their rows leave a gap."""
        self.truncated_documents = 0
        """Documents that are in the packs with their end cut off."""
        self.trace = 0
        """The length trace of the rejected stretches of documents that are in the packs."""
        self._open_docs = array("q")
        self._open_ends = array("q")
        self._pending: list[tuple[int, Reject]] = []
        self._rows_of_doc: list[Reject] = []

    def add(self, reject: Reject, source: int) -> None:
        """Add the next row; ``source`` is the index of its document's source, or -1."""
        self.rows[reject.reason] += 1
        self.tokens[reject.reason] += reject.tokens
        self.bad_records += reject.reason in BAD_RECORD_REASONS
        if reject.tokens == 0:
            if source >= 0:
                self.tokenless[source] += 1
            return
        self._pending.append((source, reject))
        if len(self._pending) == _ROWS:
            self._mix()
        if self._rows_of_doc and self._rows_of_doc[0].doc_id != reject.doc_id:
            self._close_document()
        self._rows_of_doc.append(reject)

    def finish(self) -> None:
        """Take in the last rows."""
        self._mix()
        self._close_document()

    @property
    def open_documents(self) -> tuple[Int64s, Int64s]:
        """Documents rejected from their first token to an end, perhaps whole: rising ids, and the ends."""
        return np.frombuffer(self._open_docs, dtype=np.int64), np.frombuffer(self._open_ends, dtype=np.int64)

    def _mix(self) -> None:
        if not self._pending:
            return
        rows = [reject for _, reject in self._pending]
        self.sums.add(
            np.array([source for source, _ in self._pending], dtype=np.int64),
            np.array([row.doc_id for row in rows], dtype=np.int64),
            np.array([row.offset for row in rows], dtype=np.int64),
            np.array([row.tokens for row in rows], dtype=np.int64),
            np.array([row.checksum for row in rows], dtype=np.uint64),
        )
        self._pending.clear()

    def _close_document(self) -> None:
        rows = self._rows_of_doc
        if not rows:
            return
        end = 0
        for row in rows:
            if row.offset != end:
                break
            end += row.tokens
        else:
            # From the first token on without a gap. Whatever ends with another reason than nothing_to_train
            # (overlong, truncated) reaches the document's end, so nothing of it is in the packs.
            if all(row.reason == "nothing_to_train" for row in rows):
                self._open_docs.append(rows[0].doc_id)
                self._open_ends.append(end)
            rows.clear()
            return
        self.out_documents += rows[0].offset == 0
        self.truncated_documents += rows[-1].reason == "truncated"
        ends = np.array([row.offset + row.tokens for row in rows], dtype=np.int64)
        starts = np.array([row.offset for row in rows], dtype=np.int64)
        self.trace += _wrapped_sum(_length_trace(ends) - _length_trace(starts))
        rows.clear()


class PackTally:
    """What the packs add up to, padding left out."""

    def __init__(self, ranges: SourceRanges, sources: int, shards: int, rejects: RejectTally) -> None:
        """Begin with nothing; ``rejects`` is finished."""
        self.sums = _SourceSums(sources)
        self.shard_packs = np.zeros(shards, dtype=np.int64)
        self.shard_tokens = np.zeros(shards, dtype=np.int64)
        self.shard_trained = np.zeros(shards, dtype=np.int64)
        self.segments = 0
        self.max_segments = 0
        self.out_documents = rejects.out_documents
        self.trace = rejects.trace
        self._lengths = np.zeros(1, dtype=np.int64)
        self._ranges = ranges
        self._open_docs, self._open_ends = rejects.open_documents

    def add(self, shard: int, batch: PackBatch) -> None:
        """Add packs whose segments are sound: lengths of at least 1 that sum to the packs' tokens."""
        checksums = token_checksums(batch.input_ids, batch.seq_lengths, batch.doc_offsets)
        real = ~batch.is_padding
        lengths = batch.seq_lengths[real].astype(np.int64)
        doc_ids = batch.doc_ids[real]
        offsets = batch.doc_offsets[real].astype(np.int64)
        self.sums.add(self._ranges.find(doc_ids), doc_ids, offsets, lengths, checksums[real])
        self.shard_packs[shard] += batch.packs
        self.shard_tokens[shard] += int(lengths.sum())
        self.shard_trained[shard] += np.count_nonzero(batch.labels != IGNORED)
        self.segments += len(lengths)
        self._add_lengths(lengths)
        first_segments = np.cumsum(batch.pack_segments, dtype=np.int64) - batch.pack_segments
        if batch.packs:
            in_pack = np.add.reduceat(real, first_segments, dtype=np.int64)
            self.max_segments = max(self.max_segments, int(in_pack.max()))
        self._add_documents(doc_ids, offsets, lengths)

    def _add_lengths(self, lengths: Int64s) -> None:
        counts = np.bincount(lengths)
        if len(counts) > len(self._lengths):
            counts[: len(self._lengths)] += self._lengths
            self._lengths = counts
        else:
            self._lengths[: len(counts)] += counts

    def _add_documents(self, doc_ids: Int64s, offsets: Int64s, lengths: Int64s) -> None:
        self.out_documents += int(np.count_nonzero(offsets == 0))
        self.trace += _wrapped_sum(_length_trace(offsets + lengths))
        later = offsets != 0
        if not later.any():
            return
        doc_ids, offsets = doc_ids[later], offsets[later]
        self.trace -= _wrapped_sum(_length_trace(offsets))
        if len(self._open_docs):
            # A document rejected up to an end goes on in the packs if a segment of it starts right there.
            place = np.minimum(np.searchsorted(self._open_docs, doc_ids), len(self._open_docs) - 1)
            goes_on = (self._open_docs[place] == doc_ids) & (self._open_ends[place] == offsets)
            self.out_documents += int(np.count_nonzero(goes_on))
            self.trace += _wrapped_sum(_length_trace(offsets[goes_on]))

    @property
    def segment_lengths(self) -> Histogram:
        """How many segments have each length."""
        lengths = np.flatnonzero(self._lengths)
        return Histogram(lengths=tuple(lengths.tolist()), counts=tuple(self._lengths[lengths].tolist()))


@dataclass(frozen=True, slots=True)
class Comparison:
    """One number of the manifest beside the one that was found."""

    what: str
    stated: object
    found: object

    @property
    def agrees(self) -> bool:
        """Whether they are equal."""
        return self.stated == self.found


def compare(manifest: Manifest, rejects: RejectTally, packs: PackTally) -> Iterator[Comparison]:
    """Every total of the manifest beside what packs and rejects say, sources first.

    A record is bad, or is one document in; a document in is out or left out. Tokens cut off as ``truncated``
    are that, all other rejected ones are left out.
    """
    documents, tokens = manifest.documents, manifest.tokens
    for index, source in enumerate(manifest.sources):
        found_documents = int(rejects.sums.documents[index] + packs.sums.documents[index])
        checksum = (int(rejects.sums.checksums[index]) + int(packs.sums.checksums[index])) % _UINT64
        where = f"source {source.name!r}: "
        yield Comparison(where + "documents", source.documents, found_documents)
        yield Comparison(where + "tokens", source.tokens, int(rejects.sums.tokens[index] + packs.sums.tokens[index]))
        yield Comparison(where + "checksum", source.checksum, checksum)
        yield Comparison(where + "records", source.records, found_documents + int(rejects.tokenless[index]))
    for index, shard in enumerate(manifest.shards):
        where = f"{shard.name}: "
        yield Comparison(where + "packs", shard.packs, int(packs.shard_packs[index]))
        yield Comparison(where + "tokens", shard.tokens, int(packs.shard_tokens[index]))
        yield Comparison(where + "trained_tokens", shard.trained_tokens, int(packs.shard_trained[index]))
    found = packs.segment_lengths
    yield Comparison("packs", manifest.packs, int(packs.shard_packs.sum()))
    yield Comparison("tokens.out", tokens.out, int(packs.shard_tokens.sum()))
    yield Comparison("tokens.trained", tokens.trained, int(packs.shard_trained.sum()))
    yield Comparison("segments", manifest.segments, packs.segments)
    yield Comparison("max_segments", manifest.max_segments, packs.max_segments)
    yield Comparison("longest_segment", manifest.longest_segment, max(found.lengths, default=0))
    yield Comparison("segment_lengths", _listed(manifest.segment_lengths), _listed(found))
    yield from _document_comparisons(manifest, packs)
    yield Comparison("bad_records", manifest.bad_records, rejects.bad_records)
    yield Comparison("rejected", _sorted(manifest.rejected), _sorted(rejects.rows))
    yield Comparison("rejected_tokens", _sorted(manifest.rejected_tokens), _sorted(rejects.tokens))
    yield Comparison("records", manifest.records, sum(source.records for source in manifest.sources))
    yield Comparison("documents.into", documents.into, manifest.records - manifest.bad_records)
    yield Comparison("documents.left_out", documents.left_out, documents.into - documents.out)
    yield Comparison("documents.truncated", documents.truncated, rejects.truncated_documents)
    yield Comparison("tokens.into", tokens.into, sum(source.tokens for source in manifest.sources))
    truncated = rejects.tokens["truncated"]
    yield Comparison("tokens.truncated", tokens.truncated, truncated)
    yield Comparison("tokens.left_out", tokens.left_out, rejects.tokens.total() - truncated)


def _document_comparisons(manifest: Manifest, packs: PackTally) -> Iterator[Comparison]:
    lengths = np.array(manifest.document_lengths.lengths, dtype=np.uint64)
    counts = np.array(manifest.document_lengths.counts, dtype=np.uint64)
    stated_trace = _wrapped_sum(_length_trace(lengths) * counts)
    yield Comparison("documents.out", manifest.documents.out, packs.out_documents)
    yield Comparison("document_lengths (their number)", sum(manifest.document_lengths.counts), packs.out_documents)
    yield Comparison("document_lengths (trace of the lengths)", stated_trace, packs.trace % _UINT64)


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    """Reasons with nothing in them left out, since they may be listed or not."""
    return {reason: counts[reason] for reason in sorted(counts) if counts[reason]}


def _listed(histogram: Histogram) -> dict[int, int]:
    pairs = zip(histogram.lengths, histogram.counts, strict=True)
    return {length: count for length, count in pairs if count}
