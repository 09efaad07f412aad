"""Statistics of a packed dataset, from its manifest and the sums in its shards' metadata; no pack is read.

Gives plain numbers; how they look is the terminal's business.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from packtool.errors import BadData
from packtool.manifest import Histogram, Manifest, listed_file, read_manifest
from packtool.shards import Int64s, PackSums, read_sums

FILL_EDGES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.999, 1.0)
"""Borders of the fill histogram's bins; what is exactly full has a bin of its own."""

BATCH = 8
"""Documents in the batch whose longest one the others are padded to."""


@dataclass(frozen=True, slots=True)
class Bin:
    """How many things lie in low <= x < high, or are x where ``low == high``."""

    low: float
    high: float
    count: int


@dataclass(frozen=True, slots=True)
class SegmentsPerPack:
    """Segments in a pack, padding not counted; quantiles interpolate linearly, as numpy's do."""

    median: float
    p99: float
    max: int

    @classmethod
    def of(cls, packs: Int64s) -> "SegmentsPerPack":
        """From int64 [most + 1], how many packs have 0, 1, 2, ... segments."""
        most = int(np.flatnonzero(packs)[-1]) if packs.any() else 0
        return cls(median=_quantile(packs, 0.5), p99=_quantile(packs, 0.99), max=most)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What did not go into the packs, by reason as in rejects.jsonl; ``truncated`` is among the reasons."""

    documents: int
    """Records that are in no pack; bad records are not among them."""
    tokens: int
    """Tokens left out; those cut off by truncation are not among them."""
    bad_records: int
    tokens_by_reason: dict[str, int]


@dataclass(frozen=True, slots=True)
class DatasetStats:
    """A page of numbers about one packed dataset. Padding is in no count; shares are from 0 to 1."""

    path: str
    strategy: str
    max_length: int
    packs: int
    documents: int
    """Documents of which at least one token is in a pack."""
    segments: int
    tokens: int
    trained_tokens: int
    trained_share: float
    """trained_tokens / tokens."""
    fill: float
    """tokens / (packs x max_length)."""
    padded_fill: float
    """The fill if every document were padded to max_length instead; see ``_padded_rows``."""
    batch_padded_fill: float
    """The fill if documents were padded to the longest in random batches of 8: mean / expected longest."""
    packing_factor: float
    """documents / packs."""
    lower_bound_packs: int
    gap_to_bound: int
    """packs - lower_bound_packs."""
    max_segments: int
    segments_per_pack: SegmentsPerPack
    segments_per_pack_histogram: tuple[Bin, ...]
    """Packs by segments, padding not counted; bins between 1, 2, 3, 4, 6, 8, 12, 16, ..."""
    document_length_histogram: tuple[Bin, ...]
    """Documents by length before any cut; bins from one power of two to the next."""
    fill_histogram: tuple[Bin, ...]
    """Packs by tokens / max_length; bins between ``FILL_EDGES``, and full packs."""
    attention_cost: int
    """The sum of squared segment lengths: token pairs of attention without a causal mask."""
    attention_cost_share: float
    """attention_cost / (packs x max_length^2): what it is of attention over whole packs."""
    rejected: dict[str, int]
    """Reason to rows in rejects.jsonl."""
    left_out: LeftOut
    truncated_documents: int
    truncated_tokens: int

    def to_json(self) -> dict[str, Any]:
        """The statistics as plain values, under the names above; bins as objects in lists."""
        values = asdict(self)
        for name in ("segments_per_pack_histogram", "document_length_histogram", "fill_histogram"):
            values[name] = list(values[name])
        return values


def stats(path: str | PathLike[str]) -> DatasetStats:
    """The statistics of the packed dataset in the folder ``path``.

    Raises:
        BadData: there is no packed dataset, or its manifest or the metadata of a shard cannot be used.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    packs = _PackCounts(manifest)
    for shard in manifest.shards:
        file = listed_file(folder, shard.name)
        packs.add(file, read_sums(file), shard.packs)
    if packs.total != manifest.packs or packs.tokens != manifest.tokens.out:
        raise BadData(f"{folder}: the shards do not hold what the manifest says; look with: packtool verify")
    tokens, room = manifest.tokens.out, manifest.packs * manifest.max_length
    padded = _padded_rows(manifest)
    return DatasetStats(
        path=str(folder),
        strategy=manifest.strategy,
        max_length=manifest.max_length,
        packs=manifest.packs,
        documents=manifest.documents.out,
        segments=manifest.segments,
        tokens=tokens,
        trained_tokens=manifest.tokens.trained,
        trained_share=_share(manifest.tokens.trained, tokens),
        fill=_share(tokens, room),
        padded_fill=_padded_fill(padded, manifest.max_length),
        batch_padded_fill=_batch_padded_fill(padded),
        packing_factor=_share(manifest.documents.out, manifest.packs),
        lower_bound_packs=manifest.lower_bound_packs,
        gap_to_bound=manifest.packs - manifest.lower_bound_packs,
        max_segments=manifest.max_segments,
        segments_per_pack=packs.segments_per_pack(),
        segments_per_pack_histogram=packs.segment_bins(),
        document_length_histogram=_length_bins(manifest.document_lengths),
        fill_histogram=packs.fill_bins(),
        attention_cost=packs.squares,
        attention_cost_share=_share(packs.squares, room * manifest.max_length),
        rejected=dict(sorted(manifest.rejected.items())),
        left_out=LeftOut(
            documents=manifest.documents.left_out,
            tokens=manifest.tokens.left_out,
            bad_records=manifest.bad_records,
            tokens_by_reason=dict(sorted(manifest.rejected_tokens.items())),
        ),
        truncated_documents=manifest.documents.truncated,
        truncated_tokens=manifest.tokens.truncated,
    )


class _PackCounts:
    """Adds up the sums of shard after shard; as large as the fullest pack asks, however many packs there are."""

    def __init__(self, manifest: Manifest) -> None:
        self._max_length = manifest.max_length
        self._by_segments = np.zeros(1, dtype=np.int64)
        self._by_fill = np.zeros(len(FILL_EDGES), dtype=np.int64)
        self.total = 0
        self.tokens = 0
        self.squares = 0

    def add(self, shard: Path, sums: PackSums, stated_packs: int) -> None:
        if len(sums.tokens) != stated_packs:
            raise BadData(f"{shard}: {len(sums.tokens)} packs; the manifest says {stated_packs}")
        # The numbers are a file's word: hold them to what packs can be before they size or index anything.
        sound = (
            (sums.segments >= 1)
            & (sums.segments <= sums.tokens)
            & (sums.tokens <= self._max_length)
            & (sums.squares >= sums.tokens)
            & (sums.squares <= self._max_length * sums.tokens)
        )
        if not sound.all():
            row = int(np.argmin(sound))
            raise BadData(f"{shard}: the metadata's sums of its row {row} are those of no pack")
        self.total += stated_packs
        self.tokens += int(sums.tokens.sum())
        # In two halves, since squares of long packs can pass int64 together.
        self.squares += (int((sums.squares >> 32).sum()) << 32) + int((sums.squares & 0xFFFFFFFF).sum())
        # A full pack is exactly 1.0, at or past the last edge, and so gets the last bin.
        place = np.searchsorted(FILL_EDGES, sums.tokens / self._max_length, side="right") - 1
        self._by_fill += np.bincount(place, minlength=len(FILL_EDGES))
        counts = np.bincount(sums.segments)
        if len(counts) < len(self._by_segments):
            counts, self._by_segments = self._by_segments, counts
        counts[: len(self._by_segments)] += self._by_segments
        self._by_segments = counts

    def segments_per_pack(self) -> SegmentsPerPack:
        return SegmentsPerPack.of(self._by_segments)

    def segment_bins(self) -> tuple[Bin, ...]:
        """Bins from that of the fewest segments to that of the most, empty ones between included."""
        used = np.flatnonzero(self._by_segments)
        if not len(used):
            return ()
        edges = [1]
        while edges[-1] <= used[-1]:
            edges.append(_next_edge(edges[-1]))
        running = np.concatenate([np.zeros(1, np.int64), np.cumsum(self._by_segments)])
        upto = running[np.minimum(edges, len(running) - 1)]
        pairs = zip(edges, edges[1:], np.diff(upto).tolist(), strict=False)
        return tuple(Bin(*each) for each in pairs if each[1] > used[0])

    def fill_bins(self) -> tuple[Bin, ...]:
        highs = (*FILL_EDGES[1:], FILL_EDGES[-1])
        counts = self._by_fill.tolist()
        return tuple(Bin(*each) for each in zip(FILL_EDGES, highs, counts, strict=True))


def _next_edge(edge: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, ...: every power of two, and half way to the next."""
    power = 1 << (edge.bit_length() - 1)
    return power * 2 if edge > power or power == 1 else power + power // 2


def _quantile(counts: Int64s, q: float) -> float:
    """The q-quantile of values of which ``counts[v]`` are v, between neighbours linearly."""
    running = np.cumsum(counts)
    total = int(running[-1])
    if total == 0:
        return 0.0
    place = q * (total - 1)
    below = int(place)
    low, high = np.searchsorted(running, [below, min(below + 1, total - 1)], side="right").tolist()
    return float(low + (high - low) * (place - below))


def _length_bins(histogram: Histogram) -> tuple[Bin, ...]:
    """Bins [2^k, 2^(k+1)) from the shortest document's to the longest's, empty ones between included."""
    counts: dict[int, int] = {}
    for length, count in _pairs(histogram):
        power = length.bit_length() - 1
        counts[power] = counts.get(power, 0) + count
    if not counts:
        return ()
    powers = range(min(counts), max(counts) + 1)
    return tuple(Bin(2**power, 2 ** (power + 1), counts.get(power, 0)) for power in powers)


def _padded_rows(manifest: Manifest) -> dict[int, int]:
    """Lengths of the rows that padding would make of the documents in the packs, and how many have each.

    A document longer than max_length is one row of max_length if this dataset was made by truncating, else it
    is as many full rows as it holds and one of the rest: so the rows keep what packing keeps.
    """
    most = manifest.max_length
    rows: dict[int, int] = {}
    for length, count in _pairs(manifest.document_lengths):
        full, rest = divmod(length, most)
        if full and manifest.tokens.truncated:
            full, rest = 1, 0
        if full:
            rows[most] = rows.get(most, 0) + count * full
        if rest:
            rows[rest] = rows.get(rest, 0) + count
    return rows


def _pairs(histogram: Histogram) -> Iterable[tuple[int, int]]:
    pairs = zip(histogram.lengths, histogram.counts, strict=True)
    return ((length, count) for length, count in pairs if length and count)


def _padded_fill(rows: dict[int, int], max_length: int) -> float:
    return _share(_tokens(rows), sum(rows.values()) * max_length)


def _batch_padded_fill(rows: dict[int, int]) -> float:
    """Mean length over the expected longest of a batch.

    With F(l) the share of rows of length <= l, the longest of 8 drawn at random is l with probability
    F(l)^8 - F(l-1)^8.
    """
    total = sum(rows.values())
    if total == 0:
        return 0.0
    longest, running, before = 0.0, 0, 0.0
    for length in sorted(rows):
        running += rows[length]
        upto = float((running / total) ** BATCH)
        longest += length * (upto - before)
        before = upto
    return _tokens(rows) / total / longest


def _tokens(rows: dict[int, int]) -> int:
    return sum(length * count for length, count in rows.items())


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
