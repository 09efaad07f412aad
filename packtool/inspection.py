"""Packs of a dataset as plain data to be looked at: segments, where they came from, positions, labels, text.

Takes a dataset's folder and which packs; knows nothing of terminals. Shows what stands there, right or wrong, and
says where it is not what it should be.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from packtool.contract import IGNORED, PADDING_DOC
from packtool.decoding import Decoder
from packtool.errors import BadData, Misuse
from packtool.hashing import order_hash
from packtool.manifest import REJECTS_NAME, TOKENIZER_FOLDER, Manifest, listed_file, read_manifest
from packtool.rejects import read_rejects
from packtool.shards import (
    Int32s,
    Int64s,
    PackBatch,
    check_row_group,
    check_schema,
    open_shard,
    read_columns,
    read_layout,
    read_row_group,
)
from packtool.source_ranges import SourceRanges
from packtool.tokenizer import KEPT_FILES, TokenizerFiles, load

Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Run:
    """The longest stretch of tokens of a segment that all train, or all do not."""

    start: int
    """Index in the segment of its first token."""
    stop: int
    """One past its last."""
    trained: bool
    text: str
    """As decoded, control characters and all; bytes that are no character stand as escapes such as ``\\xf0``."""


@dataclass(frozen=True, slots=True)
class ShownSegment:
    """One segment of a pack, as it stands in the shard."""

    number: int
    """In its pack, from 0."""
    source: str | None
    """Name of the source as in the manifest; None for padding."""
    line: int | None
    """Line (or row, or element) of the source, from 1; None for padding."""
    doc_id: int
    """-1 for padding."""
    doc_offset: int
    """Index in its document of the first token; 0 unless the document was split."""
    start: int
    """Index in the pack of the first token."""
    is_padding: bool
    input_ids: Int32s
    """int32 [n]."""
    labels: Int32s
    """int32 [n]."""
    position_ids: Int32s
    """int32 [n]."""
    texts: tuple[str, ...]
    """n: each token on its own; a part of a character as escapes."""
    pieces: tuple[str, ...]
    """n: what each token adds to the text; see ``Decoder.pieces``."""
    runs: tuple[Run, ...]
    faults: tuple[str, ...]
    """What is wrong with it, a line each; empty if nothing was seen."""

    @property
    def length(self) -> int:
        """n."""
        return len(self.input_ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens whose label is not -100."""
        return int(np.count_nonzero(self.labels != IGNORED))

    def to_json(self, tokens: bool) -> dict[str, Any]:
        """The segment as plain values; with ``tokens`` each of them, too."""
        values: dict[str, Any] = {
            "segment": self.number,
            "source": self.source,
            "line": self.line,
            "doc_id": self.doc_id,
            "doc_offset": self.doc_offset,
            "start": self.start,
            "length": self.length,
            "positions": [int(self.position_ids[0]), int(self.position_ids[-1])],
            "trained_tokens": self.trained_tokens,
            "is_padding": self.is_padding,
            "faults": list(self.faults),
            "runs": [
                {"start": run.start, "stop": run.stop, "trained": run.trained, "text": run.text} for run in self.runs
            ],
        }
        if tokens:
            columns = zip(
                self.position_ids.tolist(), self.input_ids.tolist(), self.labels.tolist(), self.texts, strict=True
            )
            values["tokens"] = [
                {"position": position, "id": id, "label": label, "text": text} for position, id, label, text in columns
            ]
        return values


@dataclass(frozen=True, slots=True)
class ShownPack:
    """One pack."""

    number: int
    """In the dataset, from 0."""
    shard: str
    row: int
    """In the shard, from 0."""
    max_length: int
    segments: tuple[ShownSegment, ...]
    """Padding, where there is any, is the last."""

    @property
    def tokens(self) -> int:
        """Without padding."""
        return sum(segment.length for segment in self.segments if not segment.is_padding)

    @property
    def padding(self) -> int:
        """Tokens of padding."""
        return sum(segment.length for segment in self.segments if segment.is_padding)

    @property
    def trained_tokens(self) -> int:
        """Tokens whose label is not -100."""
        return sum(segment.trained_tokens for segment in self.segments)

    @property
    def fill(self) -> float:
        """tokens / max_length."""
        return self.tokens / self.max_length

    def to_json(self, tokens: bool) -> dict[str, Any]:
        """The pack as plain values."""
        return {
            "pack": self.number,
            "shard": self.shard,
            "row": self.row,
            "tokens": self.tokens,
            "padding": self.padding,
            "fill": self.fill,
            "trained_tokens": self.trained_tokens,
            "segments": [segment.to_json(tokens) for segment in self.segments],
        }


@dataclass(frozen=True, slots=True)
class Inspection:
    """Some packs of a dataset."""

    path: str
    packs: int
    """How many the dataset has."""
    max_length: int
    doc_id: int | None
    """The document that was asked for."""
    shown: tuple[ShownPack, ...]
    """The packs that were asked for, in order."""
    faults: tuple[str, ...] = ()
    """What is wrong with all of it, a line each; empty if nothing was seen."""

    def to_json(self, tokens: bool = False) -> dict[str, Any]:
        """The packs as plain values; with ``tokens`` every token with its id, label, position and text."""
        return {
            "path": self.path,
            "packs": self.packs,
            "max_length": self.max_length,
            "faults": list(self.faults),
            "shown": [pack.to_json(tokens) for pack in self.shown],
        }


def show(
    path: str | PathLike[str],
    *,
    pack: int | None = None,
    random: int | None = None,
    seed: int = 0,
    doc: int | None = None,
) -> Inspection:
    """Packs of the dataset in the folder ``path``, decoded with the tokenizer it was made with; pack 0 by default.

    Reads the row groups of these packs alone, except to find a document.

    Args:
        path: the dataset's folder.
        pack: the number of one pack.
        random: so many different packs, chosen by ``seed`` alone.
        seed: of ``random``.
        doc: every pack that has a piece of this document; reads one column of every shard.

    Raises:
        Misuse: more than one of ``pack``, ``random`` and ``doc``, or one that the dataset does not have.
        BadData: there is no packed dataset, what is asked for is too damaged to be shown, or the document is in no
            pack (the message says why).
    """
    if sum(choice is not None for choice in (pack, random, doc)) > 1:
        raise Misuse("only one of --pack, --random and --doc can be given")
    folder = Path(path)
    manifest = read_manifest(folder)
    if doc is not None:
        numbers = _packs_of(folder, manifest, doc)
    elif random is not None:
        numbers = _drawn(folder, manifest.packs, random, seed)
    else:
        numbers = [_existing(folder, manifest.packs, pack or 0)]
    decoder, faults = _decoder(folder, manifest)
    sources = SourceRanges(manifest.sources)
    shown = [_shown(manifest, sources, decoder, found) for found in _read(folder, manifest, numbers)]
    return Inspection(str(folder), manifest.packs, manifest.max_length, doc, tuple(shown), faults)


# -- which packs -------------------------------------------------------------------------------------------


def _existing(folder: Path, packs: int, pack: int) -> int:
    if not 0 <= pack < packs:
        raise Misuse(f"--pack {pack}: {folder} has {_packs(packs)}, 0 to {packs - 1}")
    return pack


def _packs(count: int) -> str:
    return "1 pack" if count == 1 else f"{count:,} packs"


def _drawn(folder: Path, packs: int, count: int, seed: int) -> list[int]:
    """``count`` different packs: hashes of 0, 1, 2, ... modulo ``packs``, passing over what was drawn before.

    So the first three of ``--random 5`` are those of ``--random 3``, and nothing as large as the dataset is made.
    """
    if not 1 <= count <= packs:
        raise Misuse(f"--random {count}: {folder} has {_packs(packs)}; ask for 1 to {packs}")
    drawn: dict[int, None] = {}
    first = 0
    while len(drawn) < count:
        tries = np.arange(first, first + 2 * count, dtype=np.int64)
        first += len(tries)
        drawn |= dict.fromkeys((order_hash(seed, tries) % np.uint64(packs)).tolist())
    return sorted(list(drawn)[:count])


def _packs_of(folder: Path, manifest: Manifest, doc: int) -> list[int]:
    rows = sum(source.rows for source in manifest.sources)
    if not 0 <= doc < rows:
        raise Misuse(f"--doc {doc}: the sources of {folder} have {rows:,} rows, so ids are 0 to {rows - 1}")
    found: list[int] = []
    first = 0
    for shard in manifest.shards:
        path = listed_file(folder, shard.name)
        with open_shard(path) as file:
            check_schema(path, file.schema_arrow)
            layout = read_layout(path)
            for group in range(file.metadata.num_row_groups):
                check_row_group(path, layout, group, manifest.max_length)
                values, counts = read_columns(path, file, group, first, ["doc_ids"])
                owners = np.repeat(np.arange(len(counts["doc_ids"])), counts["doc_ids"])
                found += (first + np.unique(owners[values["doc_ids"] == doc])).tolist()
                first += len(counts["doc_ids"])
    if not found:
        raise BadData(_why_not_packed(folder, manifest, doc))
    return found


def _why_not_packed(folder: Path, manifest: Manifest, doc: int) -> str:
    source, line = SourceRanges(manifest.sources).place(doc)
    told = f"document {doc} ({manifest.sources[source].name}:{line}) is in no pack: "
    for reject in read_rejects(listed_file(folder, REJECTS_NAME)):
        if reject.doc_id == doc:
            detail = f", {reject.detail}" if reject.detail else ""
            return f"{told}{REJECTS_NAME} says {reject.reason}{detail}"
    return f"{told}{REJECTS_NAME} does not list it, so there is a blank line or no such record"


# -- reading them ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """A pack in the row group that holds it."""

    number: int
    shard: str
    row: int
    batch: PackBatch
    place: int
    """Which of the batch's packs it is."""


def _read(folder: Path, manifest: Manifest, numbers: Sequence[int]) -> Iterator[_Found]:
    """The packs with these numbers, which rise; a shard is opened once, and a row group read once."""
    left = list(reversed(numbers))
    first = 0
    for shard in manifest.shards:
        if left and left[-1] < first + shard.packs:
            path = listed_file(folder, shard.name)
            with open_shard(path) as file:
                check_schema(path, file.schema_arrow)
                if file.metadata.num_rows != shard.packs:
                    raise BadData(
                        f"{path}: {_packs(file.metadata.num_rows)}; the manifest says {shard.packs:,}; "
                        f"look with: packtool verify {folder}"
                    )
                yield from _read_shard(path, file, manifest.max_length, first, left)
        first += shard.packs
    if left:
        raise BadData(
            f"{folder}: pack {left[-1]} is in no shard, though the manifest counts {_packs(manifest.packs)}; "
            f"look with: packtool verify {folder}"
        )


def _read_shard(path: Path, file: pq.ParquetFile, max_length: int, first: int, left: list[int]) -> Iterator[_Found]:
    row = 0
    layout = read_layout(path)
    for group in range(file.metadata.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        batch = None
        while left and left[-1] < first + row + rows:
            number = left.pop()
            if batch is None:
                check_row_group(path, layout, group, max_length)
                batch = read_row_group(path, file, group, first + row)
            yield _Found(number, path.name, number - first, batch, number - first - row)
        row += rows


def _decoder(folder: Path, manifest: Manifest) -> tuple[Decoder, tuple[str, ...]]:
    """The tokenizer in the folder, and what is wrong where it is not the one that was used."""
    names = [f"{TOKENIZER_FOLDER}/{name}" for name in KEPT_FILES]
    there = [name for name in names if name == names[0] or os.path.lexists(folder / name)]
    files = TokenizerFiles(names[0], tuple(listed_file(folder, name) for name in there))
    try:
        decoder, digest = Decoder(load(files)), files.digest
    except Misuse as error:
        raise BadData(str(error)) from None
    except OSError as error:
        raise BadData(f"{folder / TOKENIZER_FOLDER}: cannot be read: {error.strerror}") from None
    if digest == manifest.tokenizer.digest:
        return decoder, ()
    told = (
        f"{folder / TOKENIZER_FOLDER} is not the tokenizer that was used, so what is shown may not be what was packed"
    )
    return decoder, (told,)


# -- what is in them ---------------------------------------------------------------------------------------


def _shown(manifest: Manifest, sources: SourceRanges, decoder: Decoder, found: _Found) -> ShownPack:
    batch, place = found.batch, found.place
    tokens = _stretch(batch.pack_tokens, place)
    lengths = batch.seq_lengths[_stretch(batch.pack_segments, place)].astype(np.int64)
    if (lengths < 1).any() or int(lengths.sum()) != tokens.stop - tokens.start:
        raise BadData(
            f"{found.shard}: pack {found.number}: its seq_lengths do not add up to its "
            f"{tokens.stop - tokens.start:,} tokens, so nobody can say where documents begin; do not train on it"
        )
    ids, labels, positions = batch.input_ids[tokens], batch.labels[tokens], batch.position_ids[tokens]
    trained = labels != IGNORED
    starts = np.cumsum(lengths) - lengths
    run_starts = _run_starts(trained, starts)
    texts = decoder.texts(ids)
    pieces = decoder.pieces(ids, run_starts, starts.tolist())
    ends = [*starts[1:].tolist(), len(ids)]
    first_runs = np.searchsorted(run_starts, starts).tolist()
    last_runs = [*first_runs[1:], len(run_starts)]
    run_starts.append(len(ids))
    suspects = _suspects(manifest, ids, labels, positions, lengths)
    doc_ids = batch.doc_ids[_stretch(batch.pack_segments, place)].tolist()
    offsets = batch.doc_offsets[_stretch(batch.pack_segments, place)].tolist()
    segments = []
    for number, (start, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        inside = slice(start, end)
        source, line = sources.place(doc_ids[number])
        is_known = source >= 0
        shown = ShownSegment(
            number=number,
            source=manifest.sources[source].name if is_known else None,
            line=line if is_known else None,
            doc_id=doc_ids[number],
            doc_offset=offsets[number],
            start=start,
            is_padding=doc_ids[number] == PADDING_DOC,
            input_ids=ids[inside],
            labels=labels[inside],
            position_ids=positions[inside],
            texts=tuple(texts[inside]),
            pieces=tuple(pieces[inside]),
            runs=tuple(
                Run(first - start, stop - start, bool(trained[first]), "".join(pieces[first:stop]))
                for first, stop in pairwise(run_starts[first_runs[number] : last_runs[number] + 1])
            ),
            faults=(),
        )
        if suspects[number] or not (is_known or shown.is_padding):
            shown = replace(shown, faults=tuple(_faults(manifest, shown)))
        segments.append(shown)
    return ShownPack(found.number, found.shard, found.row, manifest.max_length, tuple(segments))


def _stretch(counts: Int32s, place: int) -> slice:
    start = int(counts[:place].sum(dtype=np.int64))
    return slice(start, start + int(counts[place]))


def _run_starts(trained: Bools, segments: Int64s) -> list[int]:
    """Where runs begin: 0 0 1 1 0 in segments from 0 and 1 gives 0, 1, 2, 4."""
    begins = np.zeros(len(trained), dtype=np.bool_)
    begins[1:] = trained[1:] != trained[:-1]
    begins[segments] = True
    starts: list[int] = np.flatnonzero(begins).tolist()
    return starts


def _suspects(manifest: Manifest, ids: Int32s, labels: Int32s, positions: Int32s, lengths: Int64s) -> list[bool]:
    """Which segments have something wrong among their tokens; thousands of sound ones are not looked at singly."""
    starts = np.cumsum(lengths) - lengths
    wrong = positions != np.arange(len(ids)) - np.repeat(starts, lengths)
    wrong |= (labels != IGNORED) & (labels != ids)
    wrong |= (ids < 0) | (ids >= manifest.tokenizer.vocabulary_size)
    wrong[starts] |= labels[starts] != IGNORED
    suspects: list[bool] = np.logical_or.reduceat(wrong, starts).tolist()
    return suspects


def _faults(manifest: Manifest, segment: ShownSegment) -> Iterator[str]:
    """What is wrong with a segment and can be seen from it alone."""
    ids, labels, positions = segment.input_ids, segment.labels, segment.position_ids
    if segment.source is None and not segment.is_padding:
        yield f"doc id {segment.doc_id} belongs to no source"
    wrong = np.flatnonzero(positions != np.arange(len(positions)))
    if len(wrong):
        yield f"token {wrong[0]} has position {positions[wrong[0]]}, not {wrong[0]}"
    if labels[0] != IGNORED:
        yield f"its first token trains (label {labels[0]}): nothing in the segment can predict it"
    wrong = np.flatnonzero((labels != IGNORED) & (labels != ids))
    if len(wrong):
        yield f"token {wrong[0]} is {ids[wrong[0]]}, but its label {labels[wrong[0]]}"
    wrong = np.flatnonzero((ids < 0) | (ids >= manifest.tokenizer.vocabulary_size))
    if len(wrong):
        yield f"token {wrong[0]} is {ids[wrong[0]]}, which is not in the vocabulary"
