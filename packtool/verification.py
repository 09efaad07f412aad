"""Reads a packed dataset as a stranger would and says, check by check, whether it keeps the data contract.

Takes the folder alone and trusts nothing in it, the manifest included; memory is bounded by a row group.
Gives plain objects and knows nothing of terminals.
"""

import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.conservation import Comparison, PackTally, RejectTally, SourceRanges, compare
from packtool.contract import IGNORED
from packtool.errors import BAD_RECORD_REASONS, LEFT_OUT_REASONS, UNRENDERED_REASONS, BadData
from packtool.files import sha256_of
from packtool.manifest import (
    CARD_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    FileEntry,
    Manifest,
    ShardEntry,
    combined_digest,
    listed_file,
    read_manifest,
)
from packtool.rejects import Reject, read_rejects
from packtool.shards import (
    ROW_GROUP_TOKENS,
    Int64s,
    PackBatch,
    PackSums,
    check_schema,
    open_shard,
    read_row_group,
    read_sums,
    row_group_packs,
    shard_name,
)

Bools = NDArray[np.bool_]

CHECKS = {
    "manifest_files": "every listed file is there, in the folder, with its size, sha256 and content digest",
    "schema": "the six columns, their types, no nulls, lists of even length, row groups not too large",
    "sums": "segments of at least one token that sum to the pack, which is no longer than max_length",
    "positions": "0, 1, 2, ... from the start of every segment",
    "labels": "the token itself or -100, and a trained token in every pack",
    "segment_starts": "-100 on the first token of every segment",
    "padding": "only where asked for: one segment, the last, of the pad token, without labels",
    "vocabulary": "every id is in the tokenizer's vocabulary",
    "documents": "ids that belong to a source, offsets, pieces that do not overlap, rejects in order",
    "conservation": "every token of every source is in a pack or a reject, once, and all totals agree",
}
"""Name of each check, in the order they are reported, and what it demands."""

# A pack may be too long, which the check of sums should find; but what would not fit in memory is not read.
# Six columns take at most about 30 bytes a token, decompressed.
_READABLE_BYTES_PER_TOKEN = 128
_TOKENLESS_REASONS = BAD_RECORD_REASONS | UNRENDERED_REASONS | {"empty"}
_TOKEN_REASONS = frozenset({"overlong", "truncated"})


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    """A key of ``CHECKS``."""
    ok: bool
    checked: int
    """How many things were looked at: files, packs, segments, tokens or totals, as the check has it."""
    faults: int
    """How many of them were wrong. 0 in a check that is not ok: something could not be looked at."""
    detail: str
    """Empty if ok; else the first fault and where it is, or ``not checked: `` and why."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of every check, in the order of ``CHECKS``."""

    path: str
    ok: bool
    """Whether every check is."""
    packs: int
    """Packs that were read."""
    segments: int
    """Segments in them, without padding and without packs whose lengths do not fit them."""
    tokens: int
    """Tokens in these segments."""
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, under the names above."""
        return {**asdict(self), "checks": [asdict(check) for check in self.checks]}


def verify(path: str | PathLike[str], on_progress: Callable[[int, int], None] | None = None) -> VerifyReport:
    """Check the packed dataset in the folder ``path``.

    Args:
        path: the dataset's folder.
        on_progress: called after every row group with (packs read, packs in the manifest).

    Returns:
        The report; an unsound dataset is a report that is not ok, never an exception.

    Raises:
        BadData: there is no dataset there at all: no folder, or no manifest in it.
    """
    folder = Path(path)
    findings = _Findings()
    try:
        manifest = read_manifest(folder)
    except BadData as error:
        if not (folder / MANIFEST_NAME).is_file():
            raise
        findings["manifest_files"].fault(str(error))
        for finding in findings.all_but("manifest_files"):
            finding.miss("the manifest cannot be used")
        return findings.report(folder, None, 0)

    _check_listing(findings["manifest_files"], folder, manifest)
    _check_sources(findings["documents"], manifest)
    ranges = SourceRanges(manifest.sources)
    rejects = RejectTally(len(manifest.sources))
    _read_rejects(findings, folder, manifest, ranges, rejects)

    tally = PackTally(ranges, len(manifest.sources), len(manifest.shards), rejects)
    packs_read = 0
    for part in _one_ahead(_read_shards(findings, folder, manifest)):
        if isinstance(part, _Unread):
            for finding in findings.about_packs():
                finding.miss(part.why)
            continue
        packs_read += part.batch.packs
        _check_part(findings, manifest, ranges, tally, part)
        if on_progress is not None:
            on_progress(packs_read, manifest.packs)

    _check_totals(findings["conservation"], manifest, rejects, tally)
    return findings.report(folder, tally, packs_read)


# -- what the checks write down ----------------------------------------------------------------------------


@dataclass(slots=True)
class _Finding:
    """What one check has found so far."""

    name: str
    checked: int = 0
    faults: int = 0
    first_fault: str = ""
    missed: str = ""

    def fault(self, detail: str, count: int = 1) -> None:
        """Note ``count`` faults, of which ``detail`` is the first."""
        self.first_fault = self.first_fault or detail
        self.faults += count

    def fault_where(self, wrong: Bools, describe: Callable[[int], str]) -> None:
        """Note a fault for each thing that is ``wrong``; ``describe`` gives the detail of the first, by index."""
        if wrong.any():
            self.fault(describe(int(np.argmax(wrong))), int(np.count_nonzero(wrong)))

    def miss(self, why: str) -> None:
        """Note that something could not be looked at."""
        self.missed = self.missed or why

    def check(self) -> Check:
        detail = self.first_fault or (f"not checked: {self.missed}" if self.missed else "")
        return Check(self.name, ok=not detail, checked=self.checked, faults=self.faults, detail=detail)


class _Findings:
    """A finding for every check."""

    def __init__(self) -> None:
        self._by_name = {name: _Finding(name) for name in CHECKS}

    def __getitem__(self, name: str) -> _Finding:
        return self._by_name[name]

    def all_but(self, *names: str) -> list[_Finding]:
        return [finding for name, finding in self._by_name.items() if name not in names]

    def about_packs(self) -> list[_Finding]:
        """The checks that need the packs' content."""
        return self.all_but("manifest_files", "schema")

    def about_segments(self) -> list[_Finding]:
        """The checks that need to know where segments lie."""
        return self.all_but("manifest_files", "schema", "sums", "labels", "vocabulary")

    def report(self, folder: Path, tally: PackTally | None, packs_read: int) -> VerifyReport:
        checks = tuple(finding.check() for finding in self._by_name.values())
        return VerifyReport(
            path=str(folder),
            ok=all(check.ok for check in checks),
            packs=packs_read,
            segments=tally.segments if tally else 0,
            tokens=int(tally.shard_tokens.sum()) if tally else 0,
            checks=checks,
        )


# -- manifest, sources and rejects -------------------------------------------------------------------------


def _check_listing(finding: _Finding, folder: Path, manifest: Manifest) -> None:
    """The manifest itself, the names it lists, and every file but the shards, which are read later."""
    finding.checked += 1
    if (folder / MANIFEST_NAME).is_symlink():
        finding.fault(f"{folder / MANIFEST_NAME}: a link; a dataset's files must lie in its own folder")
    for index, shard in enumerate(manifest.shards):
        expected = shard_name(index, len(manifest.shards))
        if shard.name != expected:
            finding.fault(f"{MANIFEST_NAME}: shard {index} is called {shard.name}; expected {expected}")
    names = {entry.name for entry in manifest.files}
    for name in (CARD_NAME, REJECTS_NAME):
        if name not in names:
            finding.fault(f"{MANIFEST_NAME}: {name} is not listed")
    if manifest.content_digest != combined_digest(shard.content_digest for shard in manifest.shards):
        finding.fault(f"{MANIFEST_NAME}: content_digest is not that of the shards' content digests")
    for entry in manifest.files:
        _check_file(finding, folder, entry)


def _check_file(finding: _Finding, folder: Path, entry: FileEntry | ShardEntry) -> Path | None:
    """Check one listed file; its path if it is there to be read."""
    finding.checked += 1
    try:
        path = listed_file(folder, entry.name)
        size = path.stat().st_size
        if size != entry.bytes:
            finding.fault(f"{path}: {size} bytes; the manifest says {entry.bytes}")
        elif sha256_of(path) != entry.sha256:
            finding.fault(f"{path}: its sha256 is not the manifest's")
    except BadData as error:
        finding.fault(str(error))
        return None
    except OSError as error:
        finding.fault(f"{folder / entry.name}: cannot be read: {error.strerror}")
        return None
    return path


def _check_sources(finding: _Finding, manifest: Manifest) -> None:
    for source in manifest.sources:
        finding.checked += 1
        where = f"{MANIFEST_NAME}: source {source.name!r}"
        if source.records > source.rows or source.documents > source.records:
            counts = f"{source.rows} rows, {source.records} records and {source.documents} documents"
            finding.fault(f"{where} has {counts}")


def _read_rejects(
    findings: _Findings, folder: Path, manifest: Manifest, ranges: SourceRanges, tally: RejectTally
) -> None:
    documents = findings["documents"]
    path = folder / REJECTS_NAME
    previous: Reject | None = None
    number = 0
    try:
        for number, reject in enumerate(read_rejects(listed_file(folder, REJECTS_NAME)), 1):
            source = ranges.find_one(reject.doc_id)
            wrong = _reject_fault(manifest, source, previous, reject)
            if wrong:
                documents.fault(f"{path}:{number}: {wrong}")
            tally.add(reject, source)
            previous = reject
    except BadData as error:
        documents.fault(str(error))
        findings["conservation"].miss(f"{path} cannot be read to its end")
    documents.checked += number
    tally.finish()


def _reject_fault(manifest: Manifest, source: int, previous: Reject | None, reject: Reject) -> str:
    """What is wrong with a row, given the row before it; empty if nothing."""
    if reject.reason not in BAD_RECORD_REASONS and reject.reason not in LEFT_OUT_REASONS:
        return f"unknown reason {reject.reason!r:.60}"
    if source < 0:
        return f"doc_id {reject.doc_id} belongs to no source"
    entry = manifest.sources[source]
    line = reject.doc_id - entry.first + 1
    if (reject.source, reject.line) != (entry.name, line):
        return f"doc_id {reject.doc_id} is line {line} of {entry.name!r}, not {reject.line} of {reject.source!r:.60}"
    if reject.tokens == 0 and (reject.offset or reject.checksum or reject.reason in _TOKEN_REASONS):
        return f"no tokens, but offset {reject.offset}, checksum {reject.checksum}, reason {reject.reason}"
    if reject.tokens > 0 and reject.reason in _TOKENLESS_REASONS:
        return f"{reject.tokens} tokens, but the reason {reject.reason} is given before there are any"
    if previous is None or previous.doc_id < reject.doc_id:
        return ""
    if (previous.doc_id, previous.offset) >= (reject.doc_id, reject.offset):
        return "out of order, or listed twice; rows are sorted by doc_id and offset"
    if not previous.tokens or not reject.tokens or previous.offset + previous.tokens > reject.offset:
        return f"overlaps the row before it, of the same document {reject.doc_id}"
    return ""


# -- reading the shards ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """Packs of one row group, and where they stand."""

    shard: int
    """Index of the shard."""
    name: str
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

    def only(self, packs: Bools) -> "_Part":
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
class _Unread:
    """Packs that could not be read."""

    why: str


def _read_shards(findings: _Findings, folder: Path, manifest: Manifest) -> Iterator[_Part | _Unread]:
    """What can be read of the shards, in order; the checks of files and of schema are made on the way."""
    first = 0
    for index, entry in enumerate(manifest.shards):
        path = _check_file(findings["manifest_files"], folder, entry)
        if path is None:
            findings["schema"].miss(f"{entry.name} is not there to be read")
            yield _Unread(f"{entry.name} is not there to be read")
            first += entry.packs
            continue
        try:
            with open_shard(path) as file:
                check_schema(path, file.schema_arrow)
                rows = file.metadata.num_rows
                yield from _read_shard(findings, manifest, index, path, file, first)
        except BadData as error:
            findings["schema"].fault(str(error))
            yield _Unread(f"{entry.name} cannot be read")
            rows = entry.packs
        first += rows


def _read_shard(
    findings: _Findings, manifest: Manifest, index: int, path: Path, file: Any, first: int
) -> Iterator[_Part | _Unread]:
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
    digest = hashlib.sha256()
    whole = True
    row = 0
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        wrong = _row_group_fault(manifest, file.metadata.row_group(group))
        if wrong:
            schema.fault(f"{entry.name}: row group {group}: {wrong}")
        try:
            # The counts of values would say more, but pyarrow ends the process when it is asked for them in a
            # damaged footer.
            if file.metadata.row_group(group).total_byte_size > _readable_bytes(manifest):
                raise BadData(f"{path}: row group {group}: too large to be read")
            batch = read_row_group(path, file, group, first + row)
            if batch.packs != rows:
                raise BadData(f"{path}: row group {group} says it has {rows} packs and has {batch.packs}")
        except BadData as error:
            schema.fault(str(error))
            whole = False
            yield _Unread(f"{entry.name}: packs {first + row} to {first + row + rows - 1} cannot be read")
        else:
            schema.checked += batch.packs
            batch.digest_into(digest)
            numbers = np.arange(first + row, first + row + rows, dtype=np.int64)
            at = slice(row, row + rows)
            of_part = sums and PackSums(sums.tokens[at], sums.squares[at], sums.segments[at])
            yield _Part(index, entry.name, numbers, batch, of_part)
        row += rows
    if whole and digest.hexdigest() != entry.content_digest:
        findings["manifest_files"].fault(f"{path}: its content digest is not the manifest's")


def _row_group_fault(manifest: Manifest, group: Any) -> str:
    most = row_group_packs(manifest.max_length)
    if not 1 <= group.num_rows <= most:
        return f"{group.num_rows} packs; expected 1 to {most}"
    return ""


def _readable_bytes(manifest: Manifest) -> int:
    return _READABLE_BYTES_PER_TOKEN * max(ROW_GROUP_TOKENS, manifest.max_length)


def _one_ahead(parts: Iterator[_Part | _Unread]) -> Iterator[_Part | _Unread]:
    """The same parts, the next one read in a thread while this one is looked at."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        coming = reader.submit(next, parts, None)
        while (part := coming.result()) is not None:
            coming = reader.submit(next, parts, None)
            yield part


# -- looking at packs --------------------------------------------------------------------------------------


def _check_part(findings: _Findings, manifest: Manifest, ranges: SourceRanges, tally: PackTally, part: _Part) -> None:
    _check_labels(findings["labels"], part)
    _check_vocabulary(findings["vocabulary"], manifest, part)
    sound = _check_sums(findings["sums"], manifest, part)
    if not sound.all():
        why = f"{part.pack(int(np.argmin(sound)))}: its seq_lengths do not fit it"
        for finding in findings.about_segments():
            finding.miss(why)
        part = part.only(sound)
        if not part.batch.packs:
            return
    lengths = part.batch.seq_lengths
    firsts: Int64s = np.cumsum(lengths, dtype=np.int64) - lengths
    _check_positions(findings["positions"], part, firsts)
    _check_segment_starts(findings["segment_starts"], part, firsts)
    _check_padding(findings["padding"], manifest, part)
    _check_documents(findings["documents"], ranges, part)
    _check_recorded_sums(findings["conservation"], part)
    tally.add(part.shard, part.batch)


def _check_sums(finding: _Finding, manifest: Manifest, part: _Part) -> Bools:
    """bool [P]: in which packs the segments lie end to end, so that the other checks know where they are."""
    batch = part.batch
    finding.checked += batch.packs
    starts = part.segment_starts
    ends = starts + batch.pack_segments
    sums = _summed(batch.seq_lengths, starts, ends)
    empty = _summed(batch.seq_lengths < 1, starts, ends) > 0
    sound: Bools = (batch.pack_segments > 0) & ~empty & (sums == batch.pack_tokens)
    exact = np.equal if manifest.padded else np.less_equal
    fits = exact(batch.pack_tokens, manifest.max_length)

    def describe(pack: int) -> str:
        tokens = batch.pack_tokens[pack]
        if not batch.pack_segments[pack]:
            what = "it has no segment"
        elif empty[pack]:
            lengths = batch.seq_lengths[starts[pack] : ends[pack]]
            segment = int(np.argmax(lengths < 1))
            what = f"segment {segment} has length {lengths[segment]}; expected at least 1"
        elif not sound[pack]:
            what = f"seq_lengths sum to {sums[pack]}, but it has {tokens} tokens"
        else:
            what = f"{tokens} tokens; expected {'exactly' if manifest.padded else 'at most'} {manifest.max_length}"
        return f"{part.pack(pack)}: {what}"

    finding.fault_where(~(sound & fits), describe)
    return sound


def _summed(values: NDArray[Any], starts: Int64s, ends: Int64s) -> Int64s:
    """The sum of values[start:end] for each pair; unlike reduceat it takes empty stretches."""
    running = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, dtype=np.int64, out=running[1:])
    sums: Int64s = running[ends] - running[starts]
    return sums


def _check_positions(finding: _Finding, part: _Part, firsts: Int64s) -> None:
    positions = part.batch.position_ids
    finding.checked += len(positions)
    # One more than the token before, except where a segment begins: there 0.
    right = np.empty(len(positions), dtype=np.bool_)
    np.equal(positions[1:] - positions[:-1], 1, out=right[1:])
    right[firsts] = positions[firsts] == 0

    def describe(token: int) -> str:
        segment = int(np.searchsorted(firsts, token, side="right")) - 1
        return f"{part.token(token)}: position {positions[token]}; expected {token - firsts[segment]}"

    finding.fault_where(~right, describe)


def _check_labels(finding: _Finding, part: _Part) -> None:
    ids, labels = part.batch.input_ids, part.batch.labels
    finding.checked += len(labels)
    trained = labels != IGNORED
    finding.fault_where(
        trained & (labels != ids),
        lambda token: f"{part.token(token)}: label {labels[token]}; expected {ids[token]}, its id, or {IGNORED}",
    )
    # Over packs that have tokens only, since reduceat does not take empty stretches.
    filled = np.flatnonzero(part.batch.pack_tokens)
    untrained = np.ones(part.batch.packs, dtype=np.bool_)
    if len(filled):
        untrained[filled] = ~np.logical_or.reduceat(trained, part.token_starts[filled])
    finding.fault_where(untrained, lambda pack: f"{part.pack(pack)}: no trained token")


def _check_segment_starts(finding: _Finding, part: _Part, firsts: Int64s) -> None:
    labels = part.batch.labels[firsts]
    finding.checked += len(labels)
    finding.fault_where(
        labels != IGNORED,
        lambda at: f"{part.segment(at)}: its first token has label {labels[at]}; expected {IGNORED}",
    )


def _check_padding(finding: _Finding, manifest: Manifest, part: _Part) -> None:
    batch = part.batch
    finding.checked += batch.packs
    padding = np.flatnonzero(batch.is_padding)
    if not len(padding):
        return

    def place(at: int) -> str:
        return part.segment(int(padding[at]))

    if not manifest.padded:
        finding.fault(f"{place(0)}: padding, but the dataset is not padded", len(padding))
        return
    # None but a pack's last segment: so at most one, too.
    lasts = part.segment_starts + batch.pack_segments - 1
    finding.fault_where(
        ~np.isin(padding, lasts), lambda at: f"{place(at)}: padding that is not its pack's one last segment"
    )
    offsets = batch.doc_offsets[padding]
    finding.fault_where(offsets != 0, lambda at: f"{place(at)}: padding of offset {offsets[at]}; expected 0")
    in_padding = np.repeat(batch.is_padding, batch.seq_lengths)
    pad_id = manifest.tokenizer.pad_id
    finding.fault_where(
        in_padding & (batch.input_ids != pad_id),
        lambda token: f"{part.token(token)}: padding of id {batch.input_ids[token]}; expected {pad_id}, the pad id",
    )
    finding.fault_where(
        in_padding & (batch.labels != IGNORED), lambda token: f"{part.token(token)}: padding that carries loss"
    )


def _check_vocabulary(finding: _Finding, manifest: Manifest, part: _Part) -> None:
    ids = part.batch.input_ids
    finding.checked += len(ids)
    size = min(manifest.tokenizer.vocabulary_size, 2**31)
    # As unsigned numbers negative ids are huge, so one comparison covers both ends.
    unsigned = ids.view(np.uint32)
    if len(ids) and int(unsigned.max()) >= size:
        finding.fault_where(
            unsigned >= size,
            lambda token: f"{part.token(token)}: id {ids[token]}; the vocabulary has {size}",
        )


def _check_documents(finding: _Finding, ranges: SourceRanges, part: _Part) -> None:
    batch = part.batch
    real = np.flatnonzero(~batch.is_padding)
    doc_ids, offsets = batch.doc_ids[real], batch.doc_offsets[real].astype(np.int64)
    finding.checked += len(real)

    def place(at: int) -> str:
        return part.segment(int(real[at]))

    finding.fault_where(ranges.find(doc_ids) < 0, lambda at: f"{place(at)}: doc_id {doc_ids[at]} belongs to no source")
    finding.fault_where(offsets < 0, lambda at: f"{place(at)}: doc_offset {offsets[at]}; expected at least 0")
    # In the order of documents and offsets, a piece that starts before the end of the one before it holds tokens
    # twice. A document that comes again in another row group is left to the conservation checksum.
    order = np.lexsort((offsets, doc_ids))
    starts = offsets[order]
    ends = starts + batch.seq_lengths[real][order]
    same = doc_ids[order][1:] == doc_ids[order][:-1]
    finding.fault_where(
        same & (ends[:-1] > starts[1:]),
        lambda at: f"{place(int(order[at + 1]))}: document {doc_ids[order[at + 1]]} again, overlapping itself",
    )


def _check_recorded_sums(finding: _Finding, part: _Part) -> None:
    if part.sums is None:
        return
    tokens, squares, segments = part.batch.real_sums()
    finding.checked += 3 * len(tokens)
    _compare_sums(finding, part, "pack_tokens", part.sums.tokens, tokens)
    _compare_sums(finding, part, "pack_squares", part.sums.squares, squares)
    _compare_sums(finding, part, "pack_segments", part.sums.segments, segments)


def _compare_sums(finding: _Finding, part: _Part, name: str, stated: Int64s, found: Int64s) -> None:
    finding.fault_where(
        stated != found,
        lambda pack: f"{part.pack(pack)}: {name} is {stated[pack]} in the shard's metadata; found {found[pack]}",
    )


# -- the accounts ------------------------------------------------------------------------------------------


def _check_totals(finding: _Finding, manifest: Manifest, rejects: RejectTally, tally: PackTally) -> None:
    if finding.missed:
        return
    for comparison in compare(manifest, rejects, tally):
        finding.checked += 1
        if not comparison.agrees:
            finding.fault(f"{MANIFEST_NAME}: {_difference(comparison)}")
    least = -(-manifest.tokens.out // manifest.max_length)
    if not least <= manifest.lower_bound_packs <= manifest.packs:
        finding.fault(
            f"{MANIFEST_NAME}: lower_bound_packs is {manifest.lower_bound_packs}; "
            f"expected from {least} to {manifest.packs}"
        )


def _difference(comparison: Comparison) -> str:
    stated, found = comparison.stated, comparison.found
    what = comparison.what
    if isinstance(stated, dict) and isinstance(found, dict):
        key = next(key for key in sorted({*stated, *found}) if stated.get(key) != found.get(key))
        what, stated, found = f"{what}[{key!r:.60}]", stated.get(key, 0), found.get(key, 0)
    return f"{what} is {stated}; found {found}"
