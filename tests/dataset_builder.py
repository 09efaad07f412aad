"""Sound packed datasets made by hand, with none of the pipeline: every number by slow, obvious code.

A ``Recipe`` says what is in the dataset; ``make_dataset`` writes it. ``change_shards`` and ``change_manifest`` damage
one, and ``remake`` makes the manifest's sizes, hashes and digests agree with what lies in the folder by then.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

from packtool.card import dataset_card
from packtool.contract import IGNORED
from packtool.errors import BadData
from packtool.files import sha256_of
from packtool.hashing import odd_mix, token_checksums
from packtool.manifest import (
    CARD_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    DocumentCounts,
    FileEntry,
    Histogram,
    Manifest,
    ShardEntry,
    SourceEntry,
    TokenCounts,
    TokenizerEntry,
    combined_digest,
    read_manifest,
)
from packtool.packing import Histogram as LengthCounts
from packtool.packing.bounds import whole_bound
from packtool.rejects import Reject
from packtool.shards import PackBatch, ShardInfo, ShardWriter, row_group_packs, shard_name
from tests import runs

VOCABULARY = 500
PAD_ID = 3
SOURCES = {"a.jsonl": 40, "b.jsonl": 0, "c.jsonl": 60}
"""Name to physical rows."""


@dataclass(frozen=True)
class Document:
    """One record that became tokens."""

    doc_id: int
    ids: list[int]
    trained: list[bool]


@dataclass(frozen=True)
class Stretch:
    """The tokens [start, stop) of a document."""

    document: Document
    start: int
    stop: int


@dataclass(frozen=True)
class Recipe:
    """What a dataset holds."""

    max_length: int
    packs: list[list[Stretch]]
    cuts: list[tuple[Stretch, str]] = field(default_factory=list)
    """What is not in the packs, and the reason."""
    refused: list[tuple[int, str]] = field(default_factory=list)
    """Doc ids of records that never became tokens, and the reason."""
    pad: bool = False
    packs_per_shard: int = 5


def document(doc_id: int, length: int, untrained: int = 1) -> Document:
    """A document whose tokens all differ from their neighbours', with the first ``untrained`` of them masked."""
    ids = [10 + (doc_id * 37 + index * 11) % (VOCABULARY - 10) for index in range(length)]
    return Document(doc_id, ids, [index >= untrained for index in range(length)])


def sample(pad: bool = False) -> Recipe:
    """Two shards of packs of up to 16: whole and split documents, a truncated one, and every kind of reject."""
    max_length = 16

    def whole(doc_id: int, length: int, untrained: int = 1) -> Stretch:
        return Stretch(document(doc_id, length, untrained), 0, length)

    split = document(41, 40)
    late = document(45, 24, untrained=17)  # its first piece of 16 trains nothing and is left out
    holed = Document(46, document(46, 48).ids, [index < 16 or index >= 32 for index in range(48)])
    truncated = document(50, 20)
    packs = [
        [whole(0, 10), whole(2, 6)],
        [Stretch(split, 0, 16)],
        [whole(3, 7), whole(4, 5), whole(60, 3)],
        [Stretch(split, 32, 40), Stretch(late, 16, 24)],
        [Stretch(truncated, 0, 16)],
        [whole(5, 8), whole(6, 8)],
        [Stretch(split, 16, 32)],
        [Stretch(holed, 0, 16)],
        [Stretch(holed, 32, 48)],
        [whole(39, 2), whole(40, 2), whole(99, 5)],
    ]
    cuts = [
        (Stretch(late, 0, 16), "nothing_to_train"),
        (Stretch(holed, 16, 32), "nothing_to_train"),
        (Stretch(truncated, 16, 20), "truncated"),
        (whole(7, 30), "overlong"),
        (whole(8, 1), "nothing_to_train"),
        (whole(61, 4, untrained=4), "nothing_to_train"),
    ]
    refused = [(1, "empty"), (9, "bad_json"), (62, "wrong_type"), (63, "template_error")]
    return Recipe(max_length, packs, cuts, refused, pad)


def make_dataset(folder: Path, recipe: Recipe) -> Manifest:
    """Write the dataset of ``recipe`` into ``folder``, and its manifest."""
    folder.mkdir(parents=True)
    shards = []
    parts = [
        recipe.packs[first : first + recipe.packs_per_shard]
        for first in range(0, len(recipe.packs), recipe.packs_per_shard)
    ]
    for index, packs in enumerate(parts):
        name = shard_name(index, len(parts))
        shards.append(write_shard(folder / name, name, [batch_of(recipe, packs)], recipe.max_length))
    entries = tuple(ShardEntry(**asdict(shard)) for shard in shards)
    card = dataset_card(entries, recipe.max_length, "by hand", recipe.pad)
    (folder / CARD_NAME).write_text(card)
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text(tokenizer_json())
    write_rejects(folder, rejects_of(recipe))
    files = [CARD_NAME, REJECTS_NAME, "tokenizer/tokenizer.json"]
    manifest = Manifest(
        **totals(recipe),
        shards=entries,
        files=tuple(FileEntry(name=name, bytes=0, sha256="0" * 64) for name in files),
        content_digest="0" * 64,
    )
    (folder / MANIFEST_NAME).write_bytes(manifest.to_json())
    remake(folder)
    return read_manifest(folder)


@cache
def tokenizer_json() -> str:
    """A tokenizer of ``VOCABULARY`` words, of which one is for padding."""
    words = {f"w{id}": id for id in range(VOCABULARY) if id != PAD_ID}
    return str(Tokenizer(models.WordLevel({**words, "<pad>": PAD_ID}, unk_token="w0")).to_str())


def tokenizer_digest() -> str:
    """Of a folder that has nothing but this tokenizer."""
    raw = tokenizer_json().encode()
    return hashlib.sha256(f"tokenizer.json\0{len(raw)}\0".encode() + raw).hexdigest()


def batch_of(recipe: Recipe, packs: list[list[Stretch]]) -> PackBatch:
    """The packs as the six columns, token by token."""
    columns: dict[str, list[int]] = {name: [] for name in PackBatch.__dataclass_fields__}
    for pack in packs:
        size = 0
        for stretch in pack:
            for position, index in enumerate(range(stretch.start, stretch.stop)):
                token = stretch.document.ids[index]
                columns["input_ids"].append(token)
                columns["labels"].append(token if position and stretch.document.trained[index] else IGNORED)
                columns["position_ids"].append(position)
                size += 1
            columns["seq_lengths"].append(stretch.stop - stretch.start)
            columns["doc_ids"].append(stretch.document.doc_id)
            columns["doc_offsets"].append(stretch.start)
        segments = len(pack)
        room = recipe.max_length - size
        if recipe.pad and room:
            columns["input_ids"] += [PAD_ID] * room
            columns["labels"] += [IGNORED] * room
            columns["position_ids"] += range(room)
            columns["seq_lengths"].append(room)
            columns["doc_ids"].append(-1)
            columns["doc_offsets"].append(0)
            size, segments = recipe.max_length, segments + 1
        columns["pack_tokens"].append(size)
        columns["pack_segments"].append(segments)
    return batch_from(columns)


def batch_from(columns: dict[str, list[int]]) -> PackBatch:
    """A batch of lists."""
    return PackBatch(
        **{name: np.array(values, np.int64 if name == "doc_ids" else np.int32) for name, values in columns.items()}
    )


def write_shard(path: Path, name: str, batches: list[PackBatch], max_length: int) -> ShardInfo:
    """Write one shard, each batch a row group."""
    assert all(batch.packs <= row_group_packs(max_length) for batch in batches)
    with ShardWriter(path, name) as writer:
        for batch in batches:
            writer.write(batch)
    assert writer.info is not None
    return writer.info


def checksum(stretch: Stretch) -> int:
    """h of a stretch."""
    ids = np.array(stretch.document.ids[stretch.start : stretch.stop], np.int32)
    offset = np.array([stretch.start], np.int32)
    return int(token_checksums(ids, np.array([len(ids)], np.int32), offset)[0])


def source_of(doc_id: int) -> tuple[str, int]:
    """Name of a document's source, and its first id."""
    first = 0
    for name, rows in SOURCES.items():
        if doc_id < first + rows:
            return name, first
        first += rows
    raise ValueError(doc_id)


def rejects_of(recipe: Recipe) -> list[Reject]:
    """The rows of rejects.jsonl, in order."""
    rows = []
    for stretch, reason in recipe.cuts:
        doc_id = stretch.document.doc_id
        name, first = source_of(doc_id)
        tokens = stretch.stop - stretch.start
        line = doc_id - first + 1
        rows.append(Reject(name, line, doc_id, stretch.start, tokens, checksum(stretch), reason, "why"))
    for doc_id, reason in recipe.refused:
        name, first = source_of(doc_id)
        rows.append(Reject(name, doc_id - first + 1, doc_id, 0, 0, 0, reason, "why"))
    return sorted(rows, key=lambda row: (row.doc_id, row.offset))


def write_rejects(folder: Path, rows: list[Reject]) -> None:
    """Write rejects.jsonl."""
    (folder / REJECTS_NAME).write_text("".join(json.dumps(asdict(row)) + "\n" for row in rows))


def totals(recipe: Recipe) -> dict[str, Any]:
    """Every field of the manifest but those about files."""
    segments = [stretch for pack in recipe.packs for stretch in pack]
    everything = segments + [stretch for stretch, _ in recipe.cuts]
    documents = {stretch.document.doc_id: stretch.document for stretch in everything}
    out = {stretch.document.doc_id for stretch in segments}
    cut_tokens: Counter[str] = Counter()
    for stretch, reason in recipe.cuts:
        cut_tokens[reason] += stretch.stop - stretch.start
    rejects = rejects_of(recipe)
    into = sum(len(each.ids) for each in documents.values())
    tokens_out = sum(stretch.stop - stretch.start for stretch in segments)
    bad = sum(reason in ("bad_json", "wrong_type") for _, reason in recipe.refused)
    well_formed = len(documents) + len(recipe.refused) - bad
    truncated = {stretch.document.doc_id for stretch, reason in recipe.cuts if reason == "truncated"}
    batch = batch_of(recipe, recipe.packs)
    return {
        "format_version": 1,
        "packtool_version": "0",
        "versions": {},
        "options": {},
        "sources": tuple(source_entries(documents, recipe)),
        "limited": False,
        "revisions": {},
        "format": "prompt_completion",
        "tokenizer": TokenizerEntry(
            name="made by hand",
            digest=tokenizer_digest(),
            vocabulary_size=VOCABULARY,
            bos=None,
            bos_ids=(),
            bos_origin="none",
            eos=None,
            eos_id=None,
            eos_origin="none",
            pad="<pad>",
            pad_id=PAD_ID,
            pad_origin="pad_token",
        ),
        "template_digest": None,
        "records": len(documents) + len(recipe.refused),
        "bad_records": bad,
        "documents": DocumentCounts(
            into=well_formed, out=len(out), left_out=well_formed - len(out), truncated=len(truncated & out)
        ),
        "tokens": TokenCounts(
            into=into,
            out=tokens_out,
            left_out=into - tokens_out - cut_tokens["truncated"],
            truncated=cut_tokens["truncated"],
            trained=sum(label != IGNORED for label in batch.labels.tolist()),
        ),
        "rejected": dict(Counter(row.reason for row in rejects)),
        "rejected_tokens": {row.reason: cut_tokens[row.reason] for row in rejects},
        "strategy": "bfd_split",
        "max_length": recipe.max_length,
        "padded": recipe.pad,
        "packs": len(recipe.packs),
        "lower_bound_packs": whole_bound(
            LengthCounts.from_counts(Counter(stretch.stop - stretch.start for stretch in segments)), recipe.max_length
        ),
        "segments": len(segments),
        "max_segments": max(len(pack) for pack in recipe.packs),
        "longest_segment": max(stretch.stop - stretch.start for stretch in segments),
        "document_lengths": histogram([len(documents[doc_id].ids) for doc_id in out]),
        "segment_lengths": histogram([stretch.stop - stretch.start for stretch in segments]),
        "groups": 1,
    }


def source_entries(documents: dict[int, Document], recipe: Recipe) -> list[SourceEntry]:
    """The sources, in order."""
    entries = []
    first = 0
    for name, rows in SOURCES.items():
        inside = [each for each in documents.values() if first <= each.doc_id < first + rows]
        refused = [doc_id for doc_id, _ in recipe.refused if first <= doc_id < first + rows]
        total = 0
        for each in inside:
            mix = int(odd_mix(np.array([each.doc_id], np.int64))[0])
            total += mix * checksum(Stretch(each, 0, len(each.ids)))
        entries.append(
            SourceEntry(
                name=name,
                kind="lines",
                compression="none",
                first=first,
                rows=rows,
                records=len(inside) + len(refused),
                documents=len(inside),
                tokens=sum(len(each.ids) for each in inside),
                checksum=total % 2**64,
                digest="0" * 64,
            )
        )
        first += rows
    return entries


def histogram(lengths: list[int]) -> Histogram:
    """How many of each."""
    counts = Counter(lengths)
    return Histogram(lengths=tuple(sorted(counts)), counts=tuple(counts[length] for length in sorted(counts)))


# -- damage ------------------------------------------------------------------------------------------------


def change_manifest(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Let ``change`` edit the manifest's JSON."""
    path = folder / MANIFEST_NAME
    values = json.loads(path.read_bytes())
    change(values)
    path.write_text(json.dumps(values))


def change_shards(folder: Path, change: Callable[[dict[str, list[int]]], None], shard: int = 0) -> None:
    """Let ``change`` edit the flat columns of one shard, and write it anew, with the sums that then hold."""
    manifest = read_manifest(folder)
    name = manifest.shards[shard].name
    (batch,) = runs.batches(folder / name)
    columns = {name: getattr(batch, name).tolist() for name in PackBatch.__dataclass_fields__}
    change(columns)
    write_shard(folder / name, name, [batch_from(columns)], manifest.max_length)


def remake(folder: Path) -> None:
    """Make sizes, hashes and content digests of the manifest those of the files; its counts stay."""
    manifest = read_manifest(folder)
    shards = []
    for shard in manifest.shards:
        path = folder / shard.name
        try:
            content = content_digest(path)
        except BadData:
            content = shard.content_digest  # nothing else would be more right
        sizes = {"bytes": path.stat().st_size, "sha256": sha256_of(path), "content_digest": content}
        shards.append(shard.model_copy(update=sizes))
    files = []
    for file in manifest.files:
        path = folder / file.name
        files.append(file.model_copy(update={"bytes": path.stat().st_size, "sha256": sha256_of(path)}))
    update = {
        "shards": tuple(shards),
        "files": tuple(files),
        "content_digest": combined_digest(shard.content_digest for shard in shards),
    }
    (folder / MANIFEST_NAME).write_bytes(manifest.model_copy(update=update).to_json())


def content_digest(path: Path) -> str:
    """The content digest of one shard."""
    digest = hashlib.sha256()
    for batch in runs.batches(path):
        batch.digest_into(digest)
    return digest.hexdigest()


def with_rows(folder: Path, change: Callable[[list[Reject]], list[Reject]]) -> None:
    """Let ``change`` give other rows for rejects.jsonl."""
    rows = [Reject(**json.loads(line)) for line in (folder / REJECTS_NAME).read_text().splitlines()]
    write_rejects(folder, change(rows))
