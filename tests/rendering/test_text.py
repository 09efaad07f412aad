"""Plain text: what is rendered, and each reason why not."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.rendering import Rendered, text


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_text_is_given_as_it_is_unless_it_is_blank(content: str) -> None:
    rendered = text.render({"text": content}, "text")
    if content.strip():
        assert rendered == Rendered(content)
    else:
        assert isinstance(rendered, Refusal)
        assert rendered.reason == "empty"


@pytest.mark.parametrize(
    "content", ["a\0b", "a\u2028b", "a\r\nb", "\ufeffa", "  indented\n", "<|endoftext|>", "\u200b"]
)
def test_odd_characters_are_text(content: str) -> None:
    assert text.render({"text": content}, "text") == Rendered(content)


@pytest.mark.parametrize(
    ("record", "reason", "words"),
    [
        ({}, "missing_field", "field 'text' is not there"),
        ({"text": None}, "missing_field", "field 'text' is null"),
        ({"text": 5}, "wrong_type", "field 'text' is a number"),
        ({"text": 5.5}, "wrong_type", "a number"),
        ({"text": True}, "wrong_type", "true or false"),
        ({"text": ["a"]}, "wrong_type", "a list"),
        ({"text": np.array([1])}, "wrong_type", "a list"),
        ({"text": {"a": 1}}, "wrong_type", "an object"),
        ({"text": b"a"}, "wrong_type", "bytes"),
        ({"text": "ab\ud800"}, "lone_surrogate", "U+D800 at character 2"),
        ({"text": "\udfffab"}, "lone_surrogate", "U+DFFF at character 0"),
        ({"text": ""}, "empty", "is empty"),
        ({"text": " \t\r\n\u3000"}, "empty", "only white space"),
    ],
)
def test_each_reason(record: dict[str, Any], reason: str, words: str) -> None:
    refusal = text.render(record, "text")
    assert isinstance(refusal, Refusal)
    assert refusal.reason == reason
    assert words in refusal.detail
    assert "\n" not in refusal.detail
