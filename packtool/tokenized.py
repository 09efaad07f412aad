"""Records that are tokens already: their ids, and which of them carry loss. No text, no tokenizer.

What a record says of its loss comes as labels, or as a 0/1 mask; zeros of an attention mask at either end
are padding and are cut.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.contract import IGNORED
from packtool.errors import Refusal
from packtool.rendering.rendered import type_name

LABELS = "labels"
MASKS = ("loss_mask", "assistant_masks", "completion_mask")
TRAIN_FIELDS = (LABELS, *MASKS)
"""Fields that say which tokens carry loss."""
SEGMENTS_COLUMN = "seq_lengths"
"""A row with this column set is packed already."""

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One document that came as tokens."""

    ids: NDArray[np.int32]
    """int32 [n]."""
    trained: NDArray[np.bool_] | None
    """bool [n]; None: every token."""


@dataclass(frozen=True, slots=True)
class TokenFields:
    """Which columns of a run's records hold what."""

    input_ids: str
    attention_mask: str
    position_ids: str
    train: tuple[tuple[str, str], ...]
    """(field, column) of the labels and masks that the records have."""
    absent: tuple[str, ...]
    """Columns that would say which tokens train, and that the first records did not have."""


def read_tokens(record: Mapping[str, Any], fields: TokenFields, vocabulary_size: int) -> Tokenized | Refusal:
    """The ids of a record and which of them train, checked.

    Refusals: ``missing_field``, ``wrong_type``, ``token_out_of_range``, ``mask_length``, ``bad_mask``,
    ``bad_label``, and ``empty``.
    """
    ids = _integers(record, fields.input_ids)
    if isinstance(ids, Refusal):
        return ids
    kept = _attended(record, fields.attention_mask, len(ids))
    if isinstance(kept, Refusal):
        return kept
    # What pads may be any number, so only what is kept has to be in the vocabulary.
    outside = np.flatnonzero((ids[kept] < 0) | (ids[kept] >= min(vocabulary_size, _INT32_MAX)))
    if len(outside):
        where = kept.start + int(outside[0])
        return Refusal(
            "token_out_of_range",
            f"{fields.input_ids!r}[{where}] is {ids[where]}; the vocabulary goes from 0 to {vocabulary_size - 1}",
        )
    if record.get(SEGMENTS_COLUMN) is not None:
        return Refusal("wrong_type", f"field {SEGMENTS_COLUMN!r} is here: the row holds several documents already")
    positions = _positions(record, fields.position_ids, len(ids))
    if isinstance(positions, Refusal):
        return positions
    if positions is not None and _starts_anew(positions[kept]):
        return Refusal("wrong_type", f"{fields.position_ids!r} start anew inside: the row holds several documents")
    for column in fields.absent:
        if record.get(column) is not None:
            return Refusal("bad_mask", f"field {column!r} is here, but not in the first records; it cannot be ignored")
    trained: NDArray[np.bool_] | None = None
    for field, column in fields.train:
        marks = _marks(record, field, column, ids, kept)
        if isinstance(marks, Refusal):
            return marks
        if trained is not None and not np.array_equal(trained, marks):
            where = kept.start + int(np.flatnonzero(trained != marks)[0])
            return Refusal(
                "bad_mask", f"{fields.train[0][1]!r} and {column!r} disagree on whether token {where} trains"
            )
        trained = marks
    if kept.start == kept.stop:
        masked = " that its attention mask keeps" if len(ids) else ""
        return Refusal("empty", f"field {fields.input_ids!r} has no tokens{masked}")
    return Tokenized(ids[kept].astype(np.int32), trained)


def restarts(record: Mapping[str, Any], fields: TokenFields) -> bool:
    """Whether the record's position ids start anew somewhere inside: several documents in one row.

    What an attention mask calls padding has no say, as its positions are filled with anything. A record that
    is no sound one gives False.
    """
    positions = _integers(record, fields.position_ids)
    if isinstance(positions, Refusal):
        return False
    kept = _attended(record, fields.attention_mask, len(positions))
    return not isinstance(kept, Refusal) and _starts_anew(positions[kept])


def _starts_anew(positions: NDArray[np.int64]) -> bool:
    # compared, not subtracted: numbers at the ends of int64 would wrap around
    return bool(np.any(positions[1:] <= positions[:-1]))


def _positions(record: Mapping[str, Any], column: str, length: int) -> NDArray[np.int64] | Refusal | None:
    if record.get(column) is None:
        return None
    positions = _integers(record, column)
    if isinstance(positions, Refusal):
        return Refusal("wrong_type", positions.detail)
    if len(positions) != length:
        return Refusal("mask_length", f"{column!r} has {len(positions)} entries for {length} tokens")
    return positions


def _integers(record: Mapping[str, Any], column: str) -> NDArray[np.int64] | Refusal:
    value = record.get(column)
    if value is None:
        state = "null" if column in record else "not there"
        return Refusal("missing_field", f"field {column!r} is {state}")
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and value.ndim == 1:
        if value.dtype == np.uint64 and len(value) and value.max() > np.iinfo(np.int64).max:
            return Refusal("token_out_of_range", f"{column!r} holds {value.max()}")
        return value.astype(np.int64, copy=False)
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if not isinstance(value, list):
        return Refusal("wrong_type", f"field {column!r} is {type_name(value)}, not a list of integers")
    # `type` and not `isinstance`: True is an int to Python, and not a token.
    wrong = next((i for i, entry in enumerate(value) if type(entry) is not int), None)
    if wrong is not None:
        entry = value[wrong]
        if type(entry) is float and 2**63 <= abs(entry) < math.inf:
            # this is how JSON readers give a whole number beyond 64 bits
            return Refusal("token_out_of_range", f"{column!r}[{wrong}] is {entry:.6g}")
        return Refusal("wrong_type", f"{column!r}[{wrong}] is {type_name(entry)}, not a whole number")
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        large = next(i for i, entry in enumerate(value) if not -(2**63) <= entry < 2**63)
        return Refusal("token_out_of_range", f"{column!r}[{large}] is {float(value[large]):.6g}")


def _zero_one(record: Mapping[str, Any], column: str, length: int) -> NDArray[np.bool_] | Refusal:
    value = record.get(column)
    if isinstance(value, list) and value and all(type(entry) is bool for entry in value):
        value = np.array(value)
    if isinstance(value, np.ndarray) and value.dtype == np.bool_ and value.ndim == 1:
        flags: NDArray[np.bool_] = value
    else:
        numbers = _integers(record, column)
        if isinstance(numbers, Refusal):
            # A mask that is no list is of the wrong type; one that is, with other entries, is a bad mask.
            is_list = isinstance(value, list | np.ndarray)
            return Refusal("bad_mask", f"{numbers.detail}; a mask holds 0 and 1") if is_list else numbers
        wrong = np.flatnonzero((numbers != 0) & (numbers != 1))
        if len(wrong) and len(numbers) == length:
            where = int(wrong[0])
            return Refusal("bad_mask", f"{column!r}[{where}] is {numbers[where]}; a mask holds 0 and 1")
        flags = numbers == 1
    if len(flags) != length:
        return Refusal("mask_length", f"{column!r} has {len(flags)} entries for {length} tokens")
    return flags


def _attended(record: Mapping[str, Any], column: str, length: int) -> slice | Refusal:
    if record.get(column) is None:
        return slice(0, length)
    flags = _zero_one(record, column, length)
    if isinstance(flags, Refusal):
        return flags
    ones = np.flatnonzero(flags)
    if not len(ones):
        return slice(0, 0)
    start, stop = int(ones[0]), int(ones[-1]) + 1
    if len(ones) != stop - start:
        hole = start + int(np.flatnonzero(~flags[start:stop])[0])
        return Refusal("bad_mask", f"{column!r}[{hole}] is 0 between ones; zeros may stand at the ends only")
    return slice(start, stop)


def _marks(
    record: Mapping[str, Any], field: str, column: str, ids: NDArray[np.int64], kept: slice
) -> NDArray[np.bool_] | Refusal:
    if field != LABELS:
        flags = _zero_one(record, column, len(ids))
        return flags if isinstance(flags, Refusal) else flags[kept]
    labels = _integers(record, column)
    if isinstance(labels, Refusal):
        same_kind = labels.reason in ("missing_field", "wrong_type")
        return labels if same_kind else Refusal("bad_label", labels.detail)
    if len(labels) != len(ids):
        return Refusal("mask_length", f"{column!r} has {len(labels)} entries for {len(ids)} tokens")
    labels, ids = labels[kept], ids[kept]
    trained: NDArray[np.bool_] = labels != IGNORED
    wrong = np.flatnonzero(trained & (labels != ids))
    if len(wrong):
        where = int(wrong[0])
        shifted = bool(trained[:-1].any()) and np.array_equal(labels[:-1][trained[:-1]], ids[1:][trained[:-1]])
        hint = "; the labels look shifted, and must not be" if shifted else ""
        return Refusal(
            "bad_label",
            f"{column!r}[{where + kept.start}] is {labels[where]}, neither -100 nor the token {ids[where]}{hint}",
        )
    return trained
