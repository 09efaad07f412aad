"""Records that are tokens already: against a slow reference, as JSON gives them and as columns give them."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.tokenized import MASKS, TRAIN_FIELDS, TokenFields, Tokenized, read_tokens, restarts

VOCABULARY = 50


def fields(*train: str, absent: tuple[str, ...] = ()) -> TokenFields:
    return TokenFields("input_ids", "attention_mask", "position_ids", tuple((name, name) for name in train), absent)


def read(record: dict[str, Any], *train: str, absent: tuple[str, ...] = ()) -> Tokenized | Refusal:
    """The outcome, which is the same for lists and for arrays."""
    outcome = read_tokens(record, fields(*train, absent=absent), VOCABULARY)
    columns = {name: as_column(value) for name, value in record.items()}
    assert plain(read_tokens(columns, fields(*train, absent=absent), VOCABULARY)) == plain(outcome)
    return outcome


def as_column(value: Any) -> Any:
    """What a reader of columns makes of a list: an array, if all of it are integers of 64 bits or booleans."""
    if not isinstance(value, list) or not value:
        return value
    if all(type(entry) is bool for entry in value):
        return np.array(value)
    if all(type(entry) is int and -(2**63) <= entry < 2**63 for entry in value):
        return np.array(value, dtype=np.int64)
    return value


def plain(outcome: Tokenized | Refusal) -> Any:
    if isinstance(outcome, Refusal):
        return outcome
    return outcome.ids.tolist(), None if outcome.trained is None else outcome.trained.tolist()


def refused(record: dict[str, Any], *train: str, absent: tuple[str, ...] = ()) -> Refusal:
    outcome = read(record, *train, absent=absent)
    assert isinstance(outcome, Refusal), plain(outcome)
    assert "\n" not in outcome.detail
    return outcome


def slow(record: dict[str, Any], *train: str) -> Any:
    """What should come out, by the words of the documentation, entry by entry."""
    ids = record["input_ids"]
    attention = record.get("attention_mask", [1] * len(ids))
    if len(attention) != len(ids):
        return "mask_length"
    if any(entry not in (0, 1) for entry in attention):
        return "bad_mask"
    kept = [place for place, entry in enumerate(attention) if entry]
    if kept and kept != list(range(kept[0], kept[-1] + 1)):
        return "bad_mask"
    if any(not 0 <= ids[place] < VOCABULARY for place in kept):
        return "token_out_of_range"
    said: list[list[bool]] = []
    for name in train:
        marks = record[name]
        if len(marks) != len(ids):
            return "mask_length"
        if name == "labels":
            if any(marks[place] not in (-100, ids[place]) for place in kept):
                return "bad_label"
            said.append([marks[place] != -100 for place in kept])
        else:
            if any(entry not in (0, 1) for entry in marks):
                return "bad_mask"
            said.append([marks[place] == 1 for place in kept])
        if said[-1] != said[0]:
            return "bad_mask"
    if not kept:
        return "empty"
    return [ids[place] for place in kept], said[0] if said else None


@st.composite
def records(draw: st.DrawFn) -> tuple[dict[str, Any], tuple[str, ...]]:
    n = draw(st.integers(0, 8))
    ids = draw(st.lists(st.integers(0, VOCABULARY - 1), min_size=n, max_size=n))
    marks = draw(st.lists(st.booleans(), min_size=n, max_size=n))
    record: dict[str, Any] = {"input_ids": ids}
    train = tuple(draw(st.lists(st.sampled_from(TRAIN_FIELDS), unique=True, max_size=2)))
    for name in train:
        if name == "labels":
            record[name] = [id if mark else -100 for id, mark in zip(ids, marks, strict=True)]
        else:
            record[name] = draw(st.sampled_from([[int(mark) for mark in marks], list(marks)]))
    if n and draw(st.booleans()):
        left, right = draw(st.integers(0, 2)), draw(st.integers(0, 2))
        record["attention_mask"] = [0] * left + [1] * n + [0] * right
        record["input_ids"] = [-1] * left + ids + [10**6] * right
        for name in train:
            filler: int | bool = -100 if name == "labels" else type(record[name][0])(0)
            record[name] = [filler] * left + record[name] + [filler] * right
    for name in draw(st.lists(st.sampled_from(sorted(record)), max_size=2)):  # spoil a little, or not
        values = list(record[name])
        where = draw(st.integers(0, len(values)))
        spoilt = draw(st.sampled_from([0, 1, 2, -1, -100, VOCABULARY, VOCABULARY - 1]))
        record[name] = draw(st.sampled_from([[*values[:where], spoilt, *values[where + 1 :]], values[:where], values]))
    return record, train


def numbers_only(record: dict[str, Any]) -> bool:
    return all(len({type(entry) for entry in value}) <= 1 for value in record.values())


@given(records())
def test_tokens_equal_the_slow_reference(case: tuple[dict[str, Any], tuple[str, ...]]) -> None:
    record, train = case
    record = {name: value if numbers_only({name: value}) else [int(v) for v in value] for name, value in record.items()}
    outcome = read(record, *train)
    expected = slow(record, *train)
    assert (outcome.reason if isinstance(outcome, Refusal) else plain(outcome)) == (
        expected if isinstance(expected, str) else tuple(expected)
    )


def test_ids_are_int32_and_marks_are_booleans() -> None:
    outcome = read({"input_ids": [1, 2], "labels": [-100, 2]}, "labels")
    assert isinstance(outcome, Tokenized)
    assert outcome.ids.dtype == np.int32
    assert outcome.trained is not None
    assert outcome.trained.dtype == np.bool_


@pytest.mark.parametrize("kind", [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64])
def test_any_integer_column_holds_ids(kind: type[np.integer[Any]]) -> None:
    assert plain(read_tokens({"input_ids": np.array([3, 4], dtype=kind)}, fields(), VOCABULARY)) == ([3, 4], None)


@pytest.mark.parametrize(
    ("record", "reason", "words"),
    [
        ({}, "missing_field", "'input_ids' is not there"),
        ({"input_ids": None}, "missing_field", "'input_ids' is null"),
        ({"input_ids": "1 2"}, "wrong_type", "is text, not a list of integers"),
        ({"input_ids": 3}, "wrong_type", "is a number"),
        ({"input_ids": [1, "2"]}, "wrong_type", "'input_ids'[1] is text"),
        ({"input_ids": [1, 2.0]}, "wrong_type", "[1] is a number, not a whole number"),
        ({"input_ids": [1, None]}, "wrong_type", "[1] is null"),
        ({"input_ids": [True, 1]}, "wrong_type", "[0] is true or false"),
        ({"input_ids": [True, False]}, "wrong_type", "true or false"),
        ({"input_ids": [[1]]}, "wrong_type", "[0] is a list"),
        ({"input_ids": [math.nan]}, "wrong_type", "[0] is a number"),
        ({"input_ids": [math.inf]}, "wrong_type", "[0] is a number"),
        ({"input_ids": []}, "empty", "has no tokens"),
        ({"input_ids": [-1]}, "token_out_of_range", "[0] is -1; the vocabulary goes from 0 to 49"),
        ({"input_ids": [49, 50]}, "token_out_of_range", "[1] is 50"),
        ({"input_ids": [2**31]}, "token_out_of_range", "[0] is 2147483648"),
        ({"input_ids": [2**63]}, "token_out_of_range", "[0] is 9.22337e+18"),
        ({"input_ids": [1, -(10**30)]}, "token_out_of_range", "[1] is -1e+30"),
        ({"input_ids": [1e20]}, "token_out_of_range", "[0] is 1e+20"),
        ({"input_ids": [1, 2], "attention_mask": [1]}, "mask_length", "has 1 entries for 2 tokens"),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "bad_mask", "[1] is 0 between ones"),
        ({"input_ids": [1], "attention_mask": [2]}, "bad_mask", "[0] is 2; a mask holds 0 and 1"),
        ({"input_ids": [1], "attention_mask": [0]}, "empty", "no tokens that its attention mask keeps"),
        ({"input_ids": [1], "attention_mask": "1"}, "wrong_type", "is text"),
        ({"input_ids": [1, 2], "position_ids": [0, 0]}, "wrong_type", "start anew inside"),
        ({"input_ids": [1, 2, 3], "position_ids": [5, 6, 0]}, "wrong_type", "start anew inside"),
        ({"input_ids": [1, 2], "position_ids": [2**63 - 1, -(2**63)]}, "wrong_type", "start anew inside"),
        ({"input_ids": [1, 2], "position_ids": [[0], [0, 1]]}, "wrong_type", "'position_ids'[0] is a list"),
        ({"input_ids": [1, 2], "position_ids": [0]}, "mask_length", "has 1 entries for 2 tokens"),
        ({"input_ids": [1, 2], "seq_lengths": [1, 1]}, "wrong_type", "several documents"),
    ],
)
def test_each_reason(record: dict[str, Any], reason: str, words: str) -> None:
    refusal = refused(record)
    assert refusal.reason == reason
    assert words in refusal.detail


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize(
    ("mask", "reason"),
    [
        ([1], "mask_length"),
        ([0, 1, 1], "mask_length"),
        ([], "mask_length"),
        ([0, 2], "bad_mask"),
        ([0, -100], "bad_mask"),
        ([0, 0.5], "bad_mask"),
        ([0.0, 1.0], "bad_mask"),
        ([True, 1], "bad_mask"),
        ([0, None], "bad_mask"),
        ([0, "1"], "bad_mask"),
        ([0, 2**70], "bad_mask"),
        ("01", "wrong_type"),
        ({"a": 1}, "wrong_type"),
        (None, "missing_field"),
    ],
)
def test_each_reason_of_a_mask(name: str, mask: Any, reason: str) -> None:
    refusal = refused({"input_ids": [1, 2], name: mask}, name)
    assert refusal.reason == reason
    assert repr(name) in refusal.detail


@pytest.mark.parametrize(
    ("labels", "reason", "words"),
    [
        ([1, 2, 3], "mask_length", "has 3 entries"),
        ([-100, 1, 2, -100], "bad_label", "[1] is 1, neither -100 nor the token 2"),
        ([2, 3, 4, -100], "bad_label", "look shifted"),
        ([1, 2, 3, 0], "bad_label", "[3] is 0, neither -100 nor the token 4"),
        ([-1, -1, 3, 4], "bad_label", "[0] is -1"),
        ([2**70, 2, 3, 4], "bad_label", "'labels'[0]"),
        ([1, 2, 3, "4"], "wrong_type", "[3] is text"),
        ([1, 2, 3, None], "wrong_type", "[3] is null"),
        ("text", "wrong_type", "is text"),
        (None, "missing_field", "is null"),
    ],
)
def test_each_reason_of_labels(labels: Any, reason: str, words: str) -> None:
    refusal = refused({"input_ids": [1, 2, 3, 4], "labels": labels}, "labels")
    assert refusal.reason == reason
    assert words in refusal.detail


def test_a_wrong_label_is_not_called_shifted_without_need() -> None:
    assert "shifted" not in refused({"input_ids": [1, 2, 3], "labels": [1, 2, 1]}, "labels").detail


def test_places_are_those_of_the_record_and_not_of_what_is_left_after_padding() -> None:
    record = {"input_ids": [0, 0, 1, 99], "attention_mask": [0, 0, 1, 1]}
    assert "'input_ids'[3] is 99" in refused(record).detail
    record = {"input_ids": [0, 0, 1, 2], "attention_mask": [0, 0, 1, 1], "labels": [-100, -100, 1, 3]}
    assert "'labels'[3] is 3" in refused(record, "labels").detail


def test_marks_that_disagree_are_a_bad_mask() -> None:
    record = {"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "loss_mask": [0, 1, 0]}
    refusal = refused(record, "labels", "loss_mask")
    assert refusal.reason == "bad_mask"
    assert refusal.detail == "'labels' and 'loss_mask' disagree on whether token 2 trains"
    assert plain(read({**record, "loss_mask": [0, 1, 1]}, "labels", "loss_mask")) == ([1, 2, 3], [False, True, True])


def test_marks_that_the_first_records_did_not_have_are_not_passed_over() -> None:
    refusal = refused({"input_ids": [1], "labels": [1]}, absent=("labels",))
    assert refusal.reason == "bad_mask"
    assert "cannot be ignored" in refusal.detail
    assert plain(read({"input_ids": [1], "labels": None}, absent=("labels",))) == ([1], None)


def test_padding_at_both_ends_is_cut_whatever_it_holds() -> None:
    record = {
        "input_ids": [-100, 7, 8, 10**12],
        "attention_mask": [0, 1, 1, 0],
        "labels": [5, -100, 8, 6],
        "position_ids": [1, 0, 1, 1],
    }
    assert plain(read(record, "labels")) == ([7, 8], [False, True])


def test_a_null_attention_mask_is_none() -> None:
    assert plain(read({"input_ids": [1, 2], "attention_mask": None})) == ([1, 2], None)


def test_an_unsigned_number_beyond_64_bits_is_out_of_range() -> None:
    outcome = read_tokens({"input_ids": np.array([2**63], dtype=np.uint64)}, fields(), VOCABULARY)
    assert isinstance(outcome, Refusal)
    assert outcome.reason == "token_out_of_range"


@given(st.lists(st.integers(1, 5), min_size=1, max_size=5), st.integers(0, 3), st.integers(0, 3))
def test_restarting_positions_are_seen_under_any_padding(lengths: list[int], left: int, right: int) -> None:
    positions = [1] * left + [place for length in lengths for place in range(length)] + [0] * right
    mask = [0] * left + [1] * sum(lengths) + [0] * right
    assert restarts({"position_ids": positions, "attention_mask": mask}, fields()) == (len(lengths) > 1)
    assert restarts({"position_ids": np.array(positions), "attention_mask": np.array(mask)}, fields()) == (
        len(lengths) > 1
    )


@pytest.mark.parametrize("value", [None, "x", [], [0], [[0, 1], [0]], [0.0, 0.0], 5])
def test_what_are_no_positions_does_not_restart(value: Any) -> None:
    assert not restarts({"position_ids": value}, fields())
