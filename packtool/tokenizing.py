"""One unit of input in, one stored unit of tokens out: reads, renders, encodes, stores. Runs in a worker.

A pure task: what it stores depends on the unit's content and the recipe alone.
"""

import hashlib
import json
import reprlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.config import FormatName
from packtool.encoders.proven import load_encoders
from packtool.encoders.reference import Reference
from packtool.encoding import EncodedDocuments, TextEncoder
from packtool.errors import BAD_RECORD_REASONS, BadData, Refusal
from packtool.formats import RecordShape, columns_read, renderer, token_fields
from packtool.readers import Block, Record, Unit, UnitReader, open_unit
from packtool.readers.parsing import quoted
from packtool.rendering import Rendered, text
from packtool.rendering.chat import ChatSettings
from packtool.token_store import STORE_FORMAT, TokenStore, UnitReject, UnitSummary, UnitWriter
from packtool.tokenized import read_tokens
from packtool.tokenizer import TokenizerFiles

Int64s = NDArray[np.int64]

BATCH_RECORDS = 1 << 13
BATCH_CHARACTERS = 1 << 20
TORN_BORDER = "torn_border"
"""Note: one token has the end of the prompt and the start of the completion; it trains."""
PASS_THROUGH = "none"
"""The name of the encoder of records that are tokens already."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that changes which tokens a record becomes, and nothing else. Small and picklable."""

    tokenizer: TokenizerFiles
    tokenizer_digest: str
    """Of all its files, when the run began."""
    vocabulary_size: int
    bos_ids: tuple[int, ...]
    eos_id: int | None
    shape: RecordShape
    max_record_bytes: int
    chat: ChatSettings | None = None
    """How conversations are rendered, where the records are some."""

    @property
    def key(self) -> str:
        """A name for the recipe: equal where equal content becomes equal tokens."""
        return _key(self)


@lru_cache(maxsize=2)
def _key(recipe: Recipe) -> str:
    facts: dict[str, Any] = {
        "store": STORE_FORMAT,
        "shape": {**asdict(recipe.shape), "template_origin": ""},
        "max_record_bytes": recipe.max_record_bytes,
    }
    if recipe.shape.format is FormatName.TOKENS:
        facts["vocabulary_size"] = recipe.vocabulary_size
    else:
        facts |= {
            "tokenizer": recipe.tokenizer.encoding_digest,
            "bos": recipe.bos_ids,
            "eos": recipe.eos_id,
            "tokenizers": version("tokenizers"),
            "jinja2": version("jinja2"),
        }
    if recipe.chat is not None:
        facts["chat"] = {**asdict(recipe.chat), "origin": ""}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:40]


@dataclass(frozen=True, slots=True)
class TokenizeTask:
    """One unit to be made into tokens."""

    unit: Unit
    recipe: Recipe
    store_root: Path
    chosen: tuple[int, ...] | None = None
    """Which of the unit's records, rising; None: all. What is stored is then found again for these alone."""
    fast: str | None = None
    """The fast encoder that may be used, where the tokenizer is one it takes, and whose stored units may be."""


@dataclass(frozen=True, slots=True)
class TokenizedUnit:
    """A unit that is in the store."""

    source: int
    index: int
    summary: UnitSummary
    reused: bool
    """Whether it was there before."""


def tokenize_unit(task: TokenizeTask) -> TokenizedUnit:
    """Make one unit into tokens, unless the store has them already.

    Raises:
        BadData: the source is damaged, it or the tokenizer changed since the run began, or the tokenizer cannot
            encode a text.
        Differs: the fast encoder gave other tokens than ``tokenizers``; nothing is stored.
    """
    recipe = task.recipe
    store = TokenStore(task.store_root, recipe.key)
    reader = open_unit(task.unit, columns_read(recipe.shape))
    digest = reader.digest
    if task.chosen is not None:
        digest = hashlib.sha256(f"{digest} {task.chosen}".encode()).hexdigest()
    encoders = (PASS_THROUGH, Reference.name, *([] if task.fast is None else [task.fast]))
    if (summary := store.find(digest, encoders)) is None:
        with store.reserved(digest):
            # Another run that shares the store may have made it meanwhile.
            if (summary := store.find(digest, encoders)) is None:
                summary = _make(task, reader, digest, store)
                return TokenizedUnit(task.unit.source, task.unit.index, summary, reused=False)
    return TokenizedUnit(task.unit.source, task.unit.index, summary, reused=True)


def _make(task: TokenizeTask, reader: UnitReader, digest: str, store: TokenStore) -> UnitSummary:
    workshop = _workshop(task.recipe, reader.columnar, task.fast is not None)
    batch = _Batch(workshop)
    rejects: list[UnitReject] = []
    notes: Counter[str] = Counter()
    records = 0
    with store.writing(digest, workshop.encoder) as writer:
        for block in _chosen(reader.blocks(), task.chosen):
            made = workshop.make(block.records)
            places = np.stack([block.rows, np.arange(records, records + len(made))], axis=1)
            records += len(made)
            if Refusal in set(map(type, made)):
                refused = [place for place, one in enumerate(made) if isinstance(one, Refusal)]
                rejects += [_reject(made[place], block.records[place], *places[place]) for place in refused]
                made = [one for one in made if not isinstance(one, Refusal)]
                places = np.delete(places, refused, axis=0)
            while made:
                taken = batch.take(made, places)
                made, places = made[taken:], places[taken:]
                if batch.is_full:
                    rejects += _store(batch, workshop, writer, notes)
                    batch = _Batch(workshop)
        rejects += _store(batch, workshop, writer, notes)
        return writer.finish(
            bytes=reader.size,
            rows=reader.rows,
            records=records,
            rejects=sorted(rejects, key=lambda reject: reject.row),
            notes=notes,
        )


def _chosen(blocks: Iterable[Block], chosen: tuple[int, ...] | None) -> Iterator[Block]:
    """The records of these numbers, which rise; reads no further than to the block with the last of them."""
    if chosen is None:
        yield from blocks
        return
    if not chosen:
        return
    wanted = np.array(chosen)
    first = 0
    for block in blocks:
        stop = first + len(block.records)
        places = wanted[(first <= wanted) & (wanted < stop)] - first
        yield Block(block.rows[places], [block.records[place] for place in places])
        first = stop
        if wanted[-1] < stop:
            return


def _reject(refusal: Refusal, record: Record | Refusal, row: int, number: int) -> UnitReject:
    detail = refusal.detail
    if refusal is not record and refusal.reason in BAD_RECORD_REASONS:
        detail = f"{detail}: {_quoted(record)}"  # a refused line is quoted by its reader
    return UnitReject(int(row), int(number), refusal.reason, detail)


def _quoted(record: Record | Refusal) -> str:
    """The start of a record, as far as it was read."""
    fields = record.items() if isinstance(record, dict) else ()
    shown = {name: value[:8].tolist() if isinstance(value, np.ndarray) else value for name, value in fields}
    # In a table every record has all columns, most of them null.
    return quoted(reprlib.repr({name: value for name, value in shown.items() if value is not None} or shown))


@dataclass(frozen=True, slots=True)
class _Workshop:
    """What makes records into documents-to-be, and a batch of those into tokens."""

    make: Callable[[Sequence[Record | Refusal]], list[Any]]
    """A text, a ``Rendered`` or a ``Tokenized`` for each record, or its ``Refusal``."""
    size: Callable[[Any], int]
    """Of one of these: its characters, or tokens."""
    encode: Callable[[list[Any]], EncodedDocuments]
    encoder: str


@lru_cache(maxsize=4)
def _workshop(recipe: Recipe, columnar: bool, fast: bool) -> _Workshop:
    # A worker serves one recipe for hundreds of units; loading a large tokenizer takes a second.
    if recipe.shape.format is FormatName.TOKENS:
        fields = token_fields(recipe.shape)
        return _Workshop(
            _one_by_one(lambda record: read_tokens(record, fields, recipe.vocabulary_size)),
            lambda tokenized: len(tokenized.ids),
            EncodedDocuments.from_tokenized,
            PASS_THROUGH,
        )
    if recipe.tokenizer.digest != recipe.tokenizer_digest:
        raise BadData(f"{recipe.tokenizer.path}: the tokenizer changed since the run began; run again")
    encoder = _encoder(recipe, fast)
    if recipe.shape.format is FormatName.TEXT:
        render_all = partial(text.render_all, column=recipe.shape.column("text"))
        return _Workshop(render_all, len, encoder.encode_texts, encoder.name)
    render = renderer(recipe.shape, recipe.chat, columnar=columnar)
    return _Workshop(_one_by_one(render), lambda rendered: len(rendered.text), encoder.encode, encoder.name)


def _one_by_one(make: Callable[[Record], Any]) -> Callable[[Sequence[Record | Refusal]], list[Any]]:
    return lambda records: [record if isinstance(record, Refusal) else make(record) for record in records]


@lru_cache(maxsize=1)
def _encoder(recipe: Recipe, fast: bool) -> TextEncoder:
    return TextEncoder(load_encoders(recipe.tokenizer, fast=fast), recipe.bos_ids, recipe.eos_id)


class _Batch:
    """Documents-to-be that are encoded together, with the row and the record number of each."""

    def __init__(self, workshop: _Workshop) -> None:
        self.made: list[Any] = []
        self._places: list[Int64s] = []
        self._size_of = workshop.size
        self._size = 0

    def take(self, made: Sequence[Any], places: Int64s) -> int:
        """Take from the start of these until it is full, or all; gives how many."""
        sizes = np.cumsum(np.fromiter(map(self._size_of, made), np.int64, len(made)))
        filling = int(np.searchsorted(sizes, BATCH_CHARACTERS - self._size))
        count = min(filling + 1, BATCH_RECORDS - len(self.made), len(made))
        self.made += made[:count]
        self._places.append(places[:count])
        self._size += int(sizes[count - 1])
        return count

    @property
    def is_full(self) -> bool:
        return len(self.made) >= BATCH_RECORDS or self._size >= BATCH_CHARACTERS

    @property
    def places(self) -> Int64s:
        """int64 [n, 2]."""
        return np.concatenate(self._places)


def _store(batch: _Batch, workshop: _Workshop, writer: UnitWriter, notes: Counter[str]) -> list[UnitReject]:
    """Encode and store a batch; gives the records that have no token, and counts what is worth a note."""
    if not batch.made:
        return []
    documents = workshop.encode(batch.made)
    if isinstance(batch.made[0], Rendered):
        notes.update(chain.from_iterable(rendered.notes for rendered in batch.made))
    if documents.torn_borders:
        notes[TORN_BORDER] += documents.torn_borders
    kept = documents.lengths > 0
    whole = replace(documents, lengths=documents.lengths[kept], run_counts=documents.run_counts[kept])
    writer.add(batch.places[kept, 0], whole)
    return [
        UnitReject(row, record, "empty", "the tokenizer gives no token for it")
        for row, record in batch.places[~kept].tolist()
    ]
