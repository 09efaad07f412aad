"""A packed dataset as plain lists, to be changed and written back; and a manifest, card and sums made to agree with it.

``written`` leaves the manifest as it is, so that its hashes tell of the change. ``agree`` computes all that it states
anew from what lies in the folder, by slow, obvious code: what is wrong then stays wrong under a manifest that says so.
"""

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from packtool.card import dataset_card
from packtool.errors import BAD_RECORD_REASONS
from packtool.hashing import token_checksums
from packtool.manifest import MANIFEST_NAME, ShardEntry, combined_digest
from packtool.packing import STRATEGIES
from packtool.packing import Histogram as LengthCounts
from packtool.shards import row_group_packs, shard_name
from tests import runs
from tests.dataset_builder import batch_from, content_digest, remake, write_shard
from tests.reference_pack import mix

IGNORED = -100


@dataclass
class Segment:
    """One segment of a pack, padding too."""

    doc_id: int
    offset: int
    length: int
    """What ``seq_lengths`` says."""
    ids: list[int]
    labels: list[int]
    positions: list[int]

    @property
    def stop(self) -> int:
        """One past its last token, counted in its document."""
        return self.offset + self.length


Pack = list[Segment]


@dataclass
class Dataset:
    """Everything in a dataset's folder that a change may be about."""

    packs: list[Pack]
    shard_packs: list[int]
    """How many packs each shard has."""
    rejects: list[dict[str, Any]]
    manifest: dict[str, Any]
    """As it was read; ``written`` leaves it alone."""


def read(folder: Path) -> Dataset:
    """What lies in a folder."""
    manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    counts = [entry["packs"] for entry in manifest["shards"]]
    return Dataset([_pack(row) for row in runs.rows(folder)], counts, runs.rejects(folder), manifest)


def _pack(row: runs.Row) -> Pack:
    pack = []
    start = 0
    for length, doc_id, offset in zip(row["seq_lengths"], row["doc_ids"], row["doc_offsets"], strict=True):
        span = slice(start, start + length)
        tokens = (list(row[name][span]) for name in ("input_ids", "labels", "position_ids"))
        pack.append(Segment(doc_id, offset, length, *tokens))
        start += length
    return pack


def written(folder: Path, dataset: Dataset) -> None:
    """Write packs, with the sums that they have, and rejects; the manifest and the card stay."""
    for path in runs.shards(folder):
        path.unlink()
    first = 0
    max_length = dataset.manifest["max_length"]
    for index, count in enumerate(dataset.shard_packs):
        name = shard_name(index, len(dataset.shard_packs))
        packs = dataset.packs[first : first + count]
        size = row_group_packs(max_length)
        batches = [_batch(packs[start : start + size]) for start in range(0, count, size)]
        write_shard(folder / name, name, [batch_from(batch) for batch in batches], max_length)
        first += count
    lines = "".join(json.dumps(row) + "\n" for row in dataset.rejects)
    (folder / "rejects.jsonl").write_text(lines)


def _batch(packs: list[Pack]) -> dict[str, list[int]]:
    segments = [segment for pack in packs for segment in pack]
    return {
        "input_ids": [id for segment in segments for id in segment.ids],
        "labels": [label for segment in segments for label in segment.labels],
        "position_ids": [position for segment in segments for position in segment.positions],
        "seq_lengths": [segment.length for segment in segments],
        "doc_ids": [segment.doc_id for segment in segments],
        "doc_offsets": [segment.offset for segment in segments],
        "pack_tokens": [sum(len(segment.ids) for segment in pack) for pack in packs],
        "pack_segments": [len(pack) for pack in packs],
    }


@dataclass
class _Stretch:
    doc_id: int
    offset: int
    length: int
    checksum: int
    reason: str


def agree(folder: Path) -> None:
    """Let the manifest and the card state what lies in the folder, counts, sums and hashes alike."""
    manifest = json.loads((folder / MANIFEST_NAME).read_bytes())
    shards = [_shard_entry(path) for path in runs.shards(folder)]
    packs, rejects = runs.rows(folder), runs.rejects(folder)
    segments = [stretch for pack in packs for stretch in _segments(pack)]
    cuts = [
        _Stretch(row["doc_id"], row["offset"], row["tokens"], row["checksum"], row["reason"])
        for row in rejects
        if row["tokens"]
    ]
    lengths: dict[int, int] = {}
    for stretch in segments + cuts:
        lengths[stretch.doc_id] = max(lengths.get(stretch.doc_id, 0), stretch.offset + stretch.length)
    _agree_on_sources(manifest, segments + cuts, rejects, lengths)
    out = {stretch.doc_id for stretch in segments}
    tokens_out = sum(stretch.length for stretch in segments)
    cut_tokens: Counter[str] = Counter()
    for row in rejects:
        cut_tokens[row["reason"]] += row["tokens"]
    into = sum(source["tokens"] for source in manifest["sources"])
    manifest["records"] = sum(source["records"] for source in manifest["sources"])
    manifest["bad_records"] = sum(row["reason"] in BAD_RECORD_REASONS for row in rejects)
    well_formed = manifest["records"] - manifest["bad_records"]
    truncated = {stretch.doc_id for stretch in cuts if stretch.reason == "truncated"}
    manifest["documents"] = {
        "into": well_formed,
        "out": len(out),
        "left_out": well_formed - len(out),
        "truncated": len(truncated & out),
    }
    manifest["tokens"] = {
        "into": into,
        "out": tokens_out,
        "left_out": sum(cut_tokens.values()) - cut_tokens["truncated"],
        "truncated": cut_tokens["truncated"],
        "trained": sum(entry["trained_tokens"] for entry in shards),
    }
    manifest["rejected"] = dict(Counter(row["reason"] for row in rejects))
    manifest["rejected_tokens"] = dict(cut_tokens)
    manifest["packs"] = len(packs)
    manifest["segments"] = len(segments)
    manifest["max_segments"] = max(sum(doc_id != -1 for doc_id in pack["doc_ids"]) for pack in packs)
    manifest["longest_segment"] = max(stretch.length for stretch in segments)
    manifest["segment_lengths"] = _histogram(stretch.length for stretch in segments)
    manifest["document_lengths"] = _histogram(lengths[doc_id] for doc_id in out)
    manifest["lower_bound_packs"] = _bound(manifest, segments)
    manifest["groups"] = min(manifest["groups"], len(packs))
    manifest["shards"] = shards
    manifest["content_digest"] = combined_digest(entry["content_digest"] for entry in shards)
    entries = tuple(ShardEntry(**entry) for entry in shards)
    card = dataset_card(entries, manifest["max_length"], manifest["strategy"], manifest["padded"])
    (folder / "README.md").write_text(card)
    (folder / MANIFEST_NAME).write_text(json.dumps(manifest))
    remake(folder)


def _shard_entry(path: Path) -> dict[str, Any]:
    rows: list[runs.Row] = pq.read_table(path).to_pylist()
    return {
        "name": path.name,
        "packs": len(rows),
        "tokens": sum(stretch.length for row in rows for stretch in _segments(row)),
        "trained_tokens": sum(label != IGNORED for row in rows for label in row["labels"]),
        "bytes": 0,
        "sha256": "0" * 64,
        "content_digest": content_digest(path),
    }


def _segments(row: runs.Row) -> list[_Stretch]:
    found = []
    start = 0
    for length, doc_id, offset in zip(row["seq_lengths"], row["doc_ids"], row["doc_offsets"], strict=True):
        ids = row["input_ids"][start : start + max(0, length)]
        if doc_id != -1:
            found.append(_Stretch(doc_id, offset, length, checksum(ids, offset), ""))
        start += max(0, length)
    return found


def checksum(ids: list[int], offset: int) -> int:
    """h of a stretch, as a dataset keeps it."""
    array = np.array(ids, np.int32)
    return int(token_checksums(array, np.array([len(ids)], np.int32), np.array([offset], np.int32))[0])


def _agree_on_sources(
    manifest: dict[str, Any], stretches: list[_Stretch], rejects: list[dict[str, Any]], lengths: dict[int, int]
) -> None:
    for source in manifest["sources"]:
        inside = range(source["first"], source["first"] + source["rows"])
        documents = {doc_id for doc_id in lengths if doc_id in inside}
        mine = [stretch for stretch in stretches if stretch.doc_id in inside]
        source["documents"] = len(documents)
        source["records"] = len(documents) + sum(row["doc_id"] in inside and not row["tokens"] for row in rejects)
        source["tokens"] = sum(stretch.length for stretch in mine)
        total = sum((mix(stretch.doc_id % 2**64) | 1) * stretch.checksum for stretch in mine)
        source["checksum"] = total % 2**64


def _bound(manifest: dict[str, Any], segments: list[_Stretch]) -> int:
    strategy = STRATEGIES[manifest["strategy"]]
    planned: Counter[int] = Counter()
    if strategy.keeps_untrained:
        tokens: Counter[int] = Counter()
        for stretch in segments:
            tokens[stretch.doc_id] += stretch.length
        planned.update(tokens.values())
    else:
        planned.update(stretch.length for stretch in segments)
    try:
        counts = LengthCounts.from_counts(planned)
        return strategy.bound(counts, manifest["max_length"], manifest["options"].get("max_segments"))
    except ValueError:
        return 1  # of lengths that cannot be


def _histogram(lengths: Any) -> dict[str, list[int]]:
    counts = Counter(length for length in lengths if length >= 0)
    return {"lengths": sorted(counts), "counts": [counts[length] for length in sorted(counts)]}
