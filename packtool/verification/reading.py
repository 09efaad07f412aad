"""Reads a shard row group by row group, as far as it can be read, and says where each pack, segment and token is.

Makes the checks of files and of the schema on the way; knows nothing of what packs should hold.
"""

import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packtool.errors import BadData
from packtool.manifest import Manifest, listed_file
from packtool.shards import (
    Int64s,
    PackBatch,
    PackSums,
    check_row_group,
    check_schema,
    open_shard,
    read_layout,
    read_row_group,
    read_sums,
    row_group_packs,
)
from packtool.verification.listing import check_file
from packtool.verification.report import Bools, Findings

_MOST_PACKS = 1 << 40
"""Of a shard."""


@dataclass(frozen=True, slots=True)
class Part:
    """Packs of one row group, and where they stand."""

    name: str
    """The shard's."""
    numbers: Int64s
    """int64 [P], each pack's number in the dataset."""
    batch: PackBatch
    sums: PackSums | None
    """What the shard's metadata says of these packs, if it says anything readable."""

    @property
    def token_starts(self) -> Int64s:
        """int64 [P], where each pack's tokens begin."""
        starts: Int64s = np.cumsum(self.batch.pack_tokens, dtype=np.int64) - self.batch.pack_tokens
        return starts

    @property
    def segment_starts(self) -> Int64s:
        """int64 [P], where each pack's segments begin."""
        starts: Int64s = np.cumsum(self.batch.pack_segments, dtype=np.int64) - self.batch.pack_segments
        return starts

    def pack(self, pack: int) -> str:
        """The place of a pack, for a message."""
        return f"{self.name}: pack {self.numbers[pack]}"

    def token(self, token: int) -> str:
        """The place of a token, for a message."""
        starts = self.token_starts
        pack = int(np.searchsorted(starts, token, side="right")) - 1
        return f"{self.pack(pack)}: token {token - starts[pack]}"

    def segment(self, segment: int) -> str:
        """The place of a segment, for a message."""
        starts = self.segment_starts
        pack = int(np.searchsorted(starts, segment, side="right")) - 1
        return f"{self.pack(pack)}: segment {segment - starts[pack]}"

    def only(self, packs: Bools) -> "Part":
        """The part with some of its packs alone."""
        batch = self.batch
        tokens, segments = np.repeat(packs, batch.pack_tokens), np.repeat(packs, batch.pack_segments)
        kept = PackBatch(
            input_ids=batch.input_ids[tokens],
            labels=batch.labels[tokens],
            position_ids=batch.position_ids[tokens],
            seq_lengths=batch.seq_lengths[segments],
            doc_ids=batch.doc_ids[segments],
            doc_offsets=batch.doc_offsets[segments],
            pack_tokens=batch.pack_tokens[packs],
            pack_segments=batch.pack_segments[packs],
        )
        sums = self.sums and PackSums(self.sums.tokens[packs], self.sums.squares[packs], self.sums.segments[packs])
        return replace(self, numbers=self.numbers[packs], batch=kept, sums=sums)


@dataclass(frozen=True, slots=True)
class Unread:
    """Packs that could not be read."""

    why: str


def shard_firsts(folder: Path, manifest: Manifest) -> list[int]:
    """The number of each shard's first pack, and of the one past the last: from the footers, where they can be read."""
    firsts = [0]
    for entry in manifest.shards:
        try:
            with open_shard(listed_file(folder, entry.name)) as file:
                rows = file.metadata.num_rows
        except BadData:
            rows = entry.packs
        # Numbers are for messages and for comparing places: a nonsensical count must not overflow them.
        firsts.append(firsts[-1] + (rows if 0 <= rows <= _MOST_PACKS else 0))
    return firsts


def read_shard(findings: Findings, folder: Path, manifest: Manifest, index: int, first: int) -> Iterator[Part | Unread]:
    """What can be read of one shard, in order, the next row group read while one is looked at.

    Args:
        findings: where the checks of files and of the schema go.
        folder: the dataset's.
        manifest: the dataset's.
        index: the shard's.
        first: the number of its first pack.
    """
    return _one_ahead(_parts(findings, folder, manifest, index, first))


def _parts(findings: Findings, folder: Path, manifest: Manifest, index: int, first: int) -> Iterator[Part | Unread]:
    entry = manifest.shards[index]
    path = check_file(findings["manifest_files"], folder, entry)
    if path is None:
        findings.miss(f"{entry.name} is not there to be read", "schema")
        yield Unread(f"{entry.name} is not there to be read")
        return
    try:
        with open_shard(path) as file:
            check_schema(path, file.schema_arrow)
            yield from _row_groups(findings, manifest, index, path, file, first)
    except BadData as error:
        findings["schema"].fault(str(error))
        yield Unread(f"{entry.name} cannot be read")


def _row_groups(
    findings: Findings, manifest: Manifest, index: int, path: Path, file: Any, first: int
) -> Iterator[Part | Unread]:
    entry = manifest.shards[index]
    schema = findings["schema"]
    sums = None
    if file.metadata.num_rows != sum(
        file.metadata.row_group(group).num_rows for group in range(file.metadata.num_row_groups)
    ):
        schema.fault(f"{path}: the row groups do not have as many packs together as the file says")
    else:
        try:
            sums = read_sums(path)
        except BadData as error:
            findings["conservation"].fault(str(error))
    layout = read_layout(path)
    digest = hashlib.sha256()
    whole = True
    row = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        wrong = _row_group_fault(manifest, file.metadata.row_group(group))
        if wrong:
            schema.fault(f"{entry.name}: row group {group}: {wrong}")
        try:
            check_row_group(path, layout, group, manifest.max_length)
            batch = read_row_group(path, file, group, first + row)
            if batch.packs != rows:
                raise BadData(f"{path}: row group {group} says it has {rows} packs and has {batch.packs}")
        except BadData as error:
            schema.fault(str(error))
            whole = False
            yield Unread(f"{entry.name}: packs {first + row} to {first + row + rows - 1} cannot be read")
        else:
            schema.checked += batch.packs
            batch.digest_into(digest)
            numbers = np.arange(first + row, first + row + rows, dtype=np.int64)
            at = slice(row, row + rows)
            of_part = sums and PackSums(sums.tokens[at], sums.squares[at], sums.segments[at])
            yield Part(entry.name, numbers, batch, of_part)
        row += rows
    if whole and digest.hexdigest() != entry.content_digest:
        findings["manifest_files"].fault(f"{path}: its content digest is not the manifest's")


def _row_group_fault(manifest: Manifest, group: Any) -> str:
    most = row_group_packs(manifest.max_length)
    if not 1 <= group.num_rows <= most:
        return f"{group.num_rows} packs; expected 1 to {most}"
    return ""


def _one_ahead(parts: Iterator[Part | Unread]) -> Iterator[Part | Unread]:
    """The same parts, the next one read in a thread while this one is looked at."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, parts, None)
            yield part
