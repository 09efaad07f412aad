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


odd = st.sampled_from(
    ["", " ", "\u3000", "\x1c", "\u200b", "\ud800", "a\udc00", 5, None, True, b"a", ["a"], np.array([1])]
)
records = st.one_of(
    st.builds(lambda value: {"text": value}, st.text() | odd),
    st.just({}),
    st.just({"other": "a"}),
    st.just(Refusal("bad_json", "nonsense")),
)


@given(st.lists(records, max_size=8))
def test_many_are_rendered_as_each_is(many: list[dict[str, Any] | Refusal]) -> None:
    each = [record if isinstance(record, Refusal) else text.render(record, "text") for record in many]
    assert text.render_all(many, "text") == [one.text if isinstance(one, Rendered) else one for one in each]


def test_every_character_is_blank_to_many_as_to_each() -> None:
    characters = [chr(code) for code in range(0x110000)]
    many = text.render_all([{"text": character} for character in characters], "text")
    assert [isinstance(one, str) for one in many] == [
        bool(character.strip()) and not "\ud800" <= character <= "\udfff" for character in characters
    ]
