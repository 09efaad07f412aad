"""One unit of a source rendered and encoded once more, all of it or a sample, kept in memory. Runs in a worker.

Uses the reference encoder, whatever the run used, and writes nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.config import FormatName
from packtool.encoders.proven import load_encoders
from packtool.encoding import EncodedDocuments, TextEncoder
from packtool.errors import Refusal
from packtool.formats import columns_read, renderer, token_fields
from packtool.hashing import order_hash
from packtool.packing import TrainedRuns
from packtool.readers import Unit, open_unit
from packtool.rendering import Rendered
from packtool.shards import Int32s, Int64s
from packtool.tokenized import Tokenized, read_tokens
from packtool.tokenizing import BATCH_CHARACTERS, BATCH_RECORDS, Recipe


@dataclass(frozen=True, slots=True)
class UnitAgainTask:
    """One unit to be rendered and encoded."""

    unit: Unit
    recipe: Recipe
    seed: int
    """Of the sample."""
    threshold: int
    """Records whose hash is below it are taken; 2^64 for all."""


@dataclass(frozen=True, slots=True)
class UnitAgain:
    """What the records of a unit become."""

    source: int
    digest: str
    bytes: int
    rows: int
    records: int
    """All of the unit's, taken or not."""
    taken: Int64s
    """int64, the rows of the records that were taken, zero-based in the unit."""
    document_rows: Int64s
    """int64 [n], those of them that became documents."""
    lengths: Int32s
    """int32 [n]."""
    ids: Int32s
    """int32 [T]."""
    runs: TrainedRuns
    refused_rows: Int64s
    """int64 [r], those that did not."""
    refused_reasons: tuple[str, ...]


def make_unit_again(task: UnitAgainTask) -> UnitAgain:
    """Render and encode.

    Raises:
        BadData: the source is damaged, or the tokenizer cannot encode a text.
    """
    recipe = task.recipe
    reader = open_unit(task.unit, columns_read(recipe.shape))
    make = _maker(recipe, reader.columnar)
    taken: list[int] = []
    made: list[Any] = []
    rows: list[int] = []
    refused: dict[int, str] = {}
    batches: list[EncodedDocuments] = []
    records = size = 0
    chosen = _chosen(task, reader.rows)
    for row, record in reader.records():
        records += 1
        if not chosen[row]:
            continue
        taken.append(row)
        document = record if isinstance(record, Refusal) else make(record)
        if isinstance(document, Refusal):
            refused[row] = document.reason
            continue
        rows.append(row)
        made.append(document)
        size += len(document.text) if isinstance(document, Rendered) else len(document.ids)
        if len(made) == BATCH_RECORDS or size >= BATCH_CHARACTERS:
            batches.append(_encode(recipe, made))
            made, size = [], 0
    if made:
        batches.append(_encode(recipe, made))
    lengths = _joined([batch.lengths for batch in batches])
    run_counts = _joined([batch.run_counts for batch in batches])
    document_rows = np.array(rows, dtype=np.int64)
    # What the tokenizer gives no token for is no document.
    refused |= dict.fromkeys(document_rows[lengths == 0].tolist(), "empty")
    refused_rows = sorted(refused)
    return UnitAgain(
        source=task.unit.source,
        digest=reader.digest,
        bytes=reader.size,
        rows=reader.rows,
        records=records,
        taken=np.array(taken, dtype=np.int64),
        document_rows=document_rows[lengths > 0],
        lengths=lengths[lengths > 0],
        ids=_joined([batch.ids for batch in batches]),
        runs=TrainedRuns(
            run_counts[lengths > 0],
            _joined([batch.run_starts for batch in batches]),
            _joined([batch.run_stops for batch in batches]),
        ),
        refused_rows=np.array(refused_rows, dtype=np.int64),
        refused_reasons=tuple(refused[row] for row in refused_rows),
    )


def _chosen(task: UnitAgainTask, rows: int) -> NDArray[np.bool_]:
    if task.threshold >= 2**64:
        return np.ones(rows, dtype=np.bool_)
    seed = (task.seed << 40) + (task.unit.source << 24) + task.unit.index
    chosen: NDArray[np.bool_] = order_hash(seed, np.arange(rows)) < np.uint64(task.threshold)
    return chosen


@lru_cache(maxsize=2)
def _maker(recipe: Recipe, columnar: bool) -> Callable[[dict[str, Any]], Rendered | Tokenized | Refusal]:
    if recipe.shape.format is FormatName.TOKENS:
        fields = token_fields(recipe.shape)
        return lambda record: read_tokens(record, fields, recipe.vocabulary_size)
    return renderer(recipe.shape, recipe.chat, columnar=columnar)


@lru_cache(maxsize=1)
def _encoder(recipe: Recipe) -> TextEncoder:
    return TextEncoder(load_encoders(recipe.tokenizer, fast=False), recipe.bos_ids, recipe.eos_id)


def _encode(recipe: Recipe, made: list[Any]) -> EncodedDocuments:
    if recipe.shape.format is FormatName.TOKENS:
        return EncodedDocuments.from_tokenized(made)
    return _encoder(recipe).encode(made)


def _joined(arrays: list[Int32s]) -> Int32s:
    return np.concatenate(arrays) if arrays else np.empty(0, dtype=np.int32)
