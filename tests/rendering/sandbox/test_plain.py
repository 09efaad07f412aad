"""What a template is given: plain JSON data, weighed."""

import datetime
from typing import Any

import pytest

from packtool.rendering.sandbox import MAX_NESTING, Marked, NotPlain, weigh_plain


@pytest.mark.parametrize(
    ("value", "size"),
    [("abc", 11), (1, 8), (None, 8), (True, 8), (1.5, 8), ([], 8), ({}, 8), (["abc"], 19), ({"ab": "abc"}, 21)],
)
def test_what_data_weighs(value: Any, size: int) -> None:
    assert weigh_plain(value, {}) == size


def test_a_large_number_weighs_its_digits() -> None:
    assert weigh_plain(10**600, {}) >= 600
    assert weigh_plain([10**600], {}) >= 600
    assert weigh_plain({"a": 10**600}, {}) >= 600


@pytest.mark.parametrize(
    "value", [10**700, -(10**700), b"a", (1,), {1: 2}, {"a": {1}}, [object()], datetime.date(2026, 1, 1), Marked("a")]
)
def test_data_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain):
        weigh_plain(value, {})


def test_data_nested_too_deeply_is_refused() -> None:
    value: Any = []
    for _ in range(MAX_NESTING - 1):
        value = [value]
    assert weigh_plain(value, {}) > 0
    with pytest.raises(NotPlain):
        weigh_plain([value], {})
