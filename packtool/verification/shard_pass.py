"""One shard read once: every check of its packs made, its sums added up, its stretches left sorted on disk.

A pure task, so that several shards are looked at in several processes.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from packtool.hashing import token_checksums
from packtool.manifest import Manifest
from packtool.shards import Int64s
from packtool.source_ranges import SourceRanges
from packtool.verification.conservation import PackTally
from packtool.verification.packs import (
    check_labels,
    check_padding,
    check_positions,
    check_segment_starts,
    check_sums,
    check_text_starts,
    check_training,
    check_vocabulary,
    ends_of_texts,
)
from packtool.verification.reading import Part, Unread, read_shard
from packtool.verification.report import Finding, Findings
from packtool.verification.rules import TextRules
from packtool.verification.stretches import STRETCH, Order, Spill


@dataclass(frozen=True, slots=True)
class ShardTask:
    """One shard to be looked at."""

    folder: Path
    manifest: Manifest
    index: int
    first_pack: int
    text: TextRules
    spill_folder: Path
    orders: tuple[Order, ...]
    """The orders that its stretches are wanted in."""
    key: int | None
    """Of the checksums of tokens and labels that a comparison with the sources needs; None for none."""


@dataclass(frozen=True, slots=True)
class ShardOutcome:
    """What is known of a shard then."""

    findings: Findings
    tally: PackTally
    packs_read: int
    runs: tuple[tuple[Path, ...], ...]
    """For each order, the files of sorted stretches."""


def look_at_shard(task: ShardTask) -> ShardOutcome:
    """Look at one shard; a fault is a finding, never an exception."""
    manifest = task.manifest
    findings = Findings()
    ranges = SourceRanges(manifest.sources)
    tally = PackTally(ranges, len(manifest.sources))
    spills = tuple(
        Spill(task.spill_folder, f"shard-{task.index:05d}-{number}", order) for number, order in enumerate(task.orders)
    )
    packs_read = 0
    for part in read_shard(findings, task.folder, manifest, task.index, task.first_pack):
        if isinstance(part, Unread):
            findings.miss_packs(part.why)
            continue
        packs_read += part.batch.packs
        _look_at_part(task, findings, ranges, tally, spills, part)
    for spill in spills:
        spill.flush()
    return ShardOutcome(findings, tally, packs_read, tuple(tuple(spill.runs) for spill in spills))


def _look_at_part(
    task: ShardTask, findings: Findings, ranges: SourceRanges, tally: PackTally, spills: tuple[Spill, ...], part: Part
) -> None:
    manifest = task.manifest
    check_labels(findings["labels"], part)
    check_vocabulary(findings["vocabulary"], manifest, part)
    sound = check_sums(findings["sums"], manifest, part)
    if not sound.all():
        findings.miss_segments(f"{part.pack(int(np.argmin(sound)))}: its seq_lengths do not fit it")
        part = part.only(sound)
        if not part.batch.packs:
            return
    lengths = part.batch.seq_lengths
    firsts: Int64s = np.cumsum(lengths, dtype=np.int64) - lengths
    check_positions(findings["positions"], part, firsts)
    check_segment_starts(findings["segment_starts"], part, firsts)
    check_training(findings["training"], manifest, task.text, part, firsts)
    check_padding(findings["padding"], manifest, part)
    check_text_starts(findings["text_ends"], task.text, part, firsts)
    _check_ids(findings["documents"], ranges, part)
    _check_recorded_sums(findings["conservation"], part)
    tally.add(part.batch)
    _spill(task, spills, part, firsts)


def _spill(task: ShardTask, spills: tuple[Spill, ...], part: Part, firsts: Int64s) -> None:
    batch = part.batch
    real = ~batch.is_padding
    pack = np.repeat(np.arange(batch.packs), batch.pack_segments)
    stretches = np.zeros(len(firsts), STRETCH)
    stretches["doc_id"] = batch.doc_ids
    stretches["pack"] = part.numbers[pack]
    stretches["place"] = np.arange(len(firsts)) - part.segment_starts[pack]
    stretches["offset"] = batch.doc_offsets
    stretches["length"] = batch.seq_lengths
    stretches["ends_text"] = ends_of_texts(task.text, part, firsts)
    if task.key is not None:
        stretches["ids"] = token_checksums(batch.input_ids, batch.seq_lengths, batch.doc_offsets, task.key)
        stretches["labels"] = token_checksums(batch.labels, batch.seq_lengths, batch.doc_offsets, task.key)
    for spill in spills:
        spill.add(stretches[real])


def _check_ids(finding: Finding, ranges: SourceRanges, part: Part) -> None:
    batch = part.batch
    real = np.flatnonzero(~batch.is_padding)
    doc_ids, offsets = batch.doc_ids[real], batch.doc_offsets[real]

    def place(at: int) -> str:
        return part.segment(int(real[at]))

    finding.fault_where(ranges.find(doc_ids) < 0, lambda at: f"{place(at)}: doc_id {doc_ids[at]} belongs to no source")
    finding.fault_where(offsets < 0, lambda at: f"{place(at)}: doc_offset {offsets[at]}; expected at least 0")


def _check_recorded_sums(finding: Finding, part: Part) -> None:
    if part.sums is None:
        return
    found = part.batch.real_sums()
    stated = (part.sums.tokens, part.sums.squares, part.sums.segments)
    for name, told, counted in zip(("pack_tokens", "pack_squares", "pack_segments"), stated, found, strict=True):
        finding.checked += len(told)

        def describe(pack: int, name: str = name, told: Int64s = told, counted: Int64s = counted) -> str:
            return f"{part.pack(pack)}: {name} is {told[pack]} in the shard's metadata; found {counted[pack]}"

        finding.fault_where(told != counted, describe)
