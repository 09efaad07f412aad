"""What stands beside the shards: the rejects, the card, the tokenizer's files, the manifest and the run file.

Puts into words and numbers what the run found; decides nothing.
"""

import heapq
import json
import os
import platform
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from packtool import __version__
from packtool.accounts import ReadingAccounts
from packtool.card import dataset_card
from packtool.contract import FORMAT_VERSION
from packtool.files import fsync_folder, naming, sha256_of, write_synced
from packtool.job import Job, versions
from packtool.manifest import (
    CARD_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    RUN_NAME,
    TOKENIZER_FOLDER,
    DocumentCounts,
    FileEntry,
    Histogram,
    Manifest,
    ShardEntry,
    TokenCounts,
    TokenizerEntry,
    combined_digest,
)
from packtool.output import OutputFolder
from packtool.packing import Cut
from packtool.planning import Plan, Records
from packtool.rejects import Reject, write_rejects
from packtool.shards import ShardInfo
from packtool.source_ranges import SourceRanges


def write_inventory(
    job: Job, accounts: ReadingAccounts, plan: Plan, infos: list[ShardInfo], output: OutputFolder
) -> Manifest:
    ready = output.ready
    shards = tuple(ShardEntry(**asdict(info)) for info in infos)
    with naming(ready / REJECTS_NAME), (ready / REJECTS_NAME).open("wb") as file:
        write_rejects(file, _rejects(job, accounts, plan))
        file.flush()
        os.fsync(file.fileno())
    card = dataset_card(shards, job.rules.max_length, job.rules.strategy.name, job.config.pad)
    write_synced(ready / CARD_NAME, card.encode())
    folder = ready / TOKENIZER_FOLDER
    folder.mkdir(exist_ok=True)
    for name, file_path in job.tokenizer.kept():
        write_synced(folder / name, file_path.read_bytes())
    fsync_folder(folder)
    names = [CARD_NAME, REJECTS_NAME, *(f"{TOKENIZER_FOLDER}/{name}" for name, _ in job.tokenizer.kept())]
    manifest = _manifest(job, accounts, plan, shards, tuple(_file_entry(ready, name) for name in names))
    write_synced(ready / MANIFEST_NAME, manifest.to_json())
    fsync_folder(ready)
    return manifest


def _file_entry(folder: Path, name: str) -> FileEntry:
    return FileEntry(name=name, bytes=(folder / name).stat().st_size, sha256=sha256_of(folder / name))


def _rejects(job: Job, accounts: ReadingAccounts, plan: Plan) -> Iterator[Reject]:
    rows = (accounts.rejects(), _cut_rows(plan.cuts(), job, accounts), _cut_rows(plan.untrained(), job, accounts))
    return heapq.merge(*rows, key=lambda row: (row.doc_id, row.offset))


def _cut_rows(blocks: Iterator[Records], job: Job, accounts: ReadingAccounts) -> Iterator[Reject]:
    entries = accounts.entries()
    ranges = SourceRanges(entries)
    for block in blocks:
        for doc_id, checksum, offset, length, whole, code in block.tolist():
            source, line = ranges.place(doc_id)
            reason = Cut(code).name
            detail = _DETAILS[reason].format(whole=whole, max_length=job.rules.max_length)
            yield Reject(entries[source].name, line, doc_id, offset, length, checksum, reason, detail)


_DETAILS = {
    "overlong": "{whole} tokens, over max_length {max_length}",
    "truncated": "cut off: the document has {whole} tokens, max_length is {max_length}",
    "nothing_to_train": "no token of it carries loss (the first never does); tokens in the document: {whole}",
}


def _manifest(
    job: Job,
    accounts: ReadingAccounts,
    plan: Plan,
    shards: tuple[ShardEntry, ...],
    files: tuple[FileEntry, ...],
) -> Manifest:
    counts, special = plan.counts, job.special
    into = accounts.records - accounts.bad_records
    truncated = counts.cut_tokens["truncated"]
    rejected = accounts.rejected + counts.cut_rows
    return Manifest(
        format_version=FORMAT_VERSION,
        packtool_version=__version__,
        versions=versions(),
        options=job.options,
        sources=accounts.entries(),
        limited=job.config.limit is not None,
        revisions=job.found.revisions,
        format=str(job.shape.format),
        tokenizer=TokenizerEntry(
            name=job.tokenizer.short_name,
            digest=job.recipe.tokenizer_digest,
            vocabulary_size=job.recipe.vocabulary_size,
            bos=special.bos.token,
            bos_ids=special.bos_ids,
            bos_origin=special.bos.origin,
            eos=special.eos.token,
            eos_id=special.eos.id,
            eos_origin=special.eos.origin,
            pad=special.pad.token,
            pad_id=special.pad.id,
            pad_origin=special.pad.origin,
        ),
        template_digest=job.template_digest,
        records=accounts.records,
        bad_records=accounts.bad_records,
        documents=DocumentCounts(
            into=into, out=counts.documents, left_out=into - counts.documents, truncated=counts.truncated_documents
        ),
        tokens=TokenCounts(
            into=accounts.tokens,
            out=counts.tokens,
            left_out=accounts.tokens - counts.tokens - truncated,
            truncated=truncated,
            trained=sum(shard.trained_tokens for shard in shards),
        ),
        rejected=dict(sorted(rejected.items())),
        notes=dict(sorted(accounts.notes.items())),
        rejected_tokens={reason: counts.cut_tokens[reason] for reason in sorted(rejected)},
        strategy=job.rules.strategy.name,
        max_length=job.rules.max_length,
        padded=job.config.pad,
        packs=plan.packs,
        lower_bound_packs=plan.lower_bound_packs,
        segments=counts.segments,
        max_segments=counts.most_segments,
        longest_segment=max(counts.segment_lengths),
        document_lengths=_histogram(counts.document_lengths),
        segment_lengths=_histogram(counts.segment_lengths),
        groups=len(plan.groups),
        shards=shards,
        files=files,
        content_digest=combined_digest(shard.content_digest for shard in shards),
    )


def _histogram(counts: Counter[int]) -> Histogram:
    lengths = sorted(length for length, count in counts.items() if count)
    return Histogram(lengths=tuple(lengths), counts=tuple(counts[length] for length in lengths))


def write_run_file(
    job: Job, accounts: ReadingAccounts, output: OutputFolder, started: float, seconds: dict[str, float]
) -> None:
    values = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "workers": job.config.worker_count,
        "engine": "local processes",
        "encoders": sorted(accounts.encoders),
        "reused_units": accounts.reused_units,
    }
    write_synced(output.ready / RUN_NAME, json.dumps(values, indent=2).encode() + b"\n")
