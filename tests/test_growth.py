"""How much longer a tokenizer makes a text: never more than the bound, and real ones are far below it."""

import base64
import json
import struct
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers

from packtool.growth import MOST_GROWTH, text_growth
from tests import tokenizer_builder

TEXTS = st.text("abc ", max_size=4)
# The library panics where an expression matches nothing at the end of a text, so here none does.
STEPS = st.one_of(
    st.builds(normalizers.Replace, TEXTS.filter(bool), TEXTS),
    st.builds(normalizers.Replace, st.sampled_from(["a+", "[ab]", " {2,}", "a|bc", "b.?"]).map(Regex), TEXTS),
    st.builds(normalizers.Prepend, TEXTS.filter(bool)),
    st.just(normalizers.Lowercase()),
    st.just(normalizers.ByteLevel()),
)


def facts_of(steps: list[Any]) -> dict[str, Any]:
    """The tokenizer.json of a normalizer of these steps."""
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.normalizer = normalizers.Sequence(steps)
    facts: dict[str, Any] = json.loads(tokenizer.to_str())
    return facts


@given(st.lists(STEPS, max_size=5), st.text("abcé ", min_size=1, max_size=30))
def test_no_text_grows_more_than_the_bound_says(steps: list[Any], text: str) -> None:
    bound = text_growth(facts_of(steps))
    assume(bound <= MOST_GROWTH)
    assert len(normalizers.Sequence(steps).normalize_str(text)) <= bound * (len(text) + 1)


@pytest.mark.parametrize(
    "steps",
    [
        [normalizers.Replace("a", "a" * 1000)] * 4,
        [normalizers.Replace("a", "bb"), normalizers.Replace("b", "aa")] * 10,
        [normalizers.Replace("ab", "xyxyxy"), normalizers.Replace("yx", "ab" * 40)] * 3,
        [normalizers.Replace(Regex("."), "ab")] * 8,
        [normalizers.Replace(Regex(r"\b"), "a" * 200)],
        [normalizers.Prepend("a" * 200)],
        [normalizers.ByteLevel()] * 10,
    ],
    ids=range(7),
)
def test_steps_that_blow_a_text_up_are_above_what_is_taken(steps: list[Any]) -> None:
    assert text_growth(facts_of(steps)) > MOST_GROWTH


def test_a_map_of_sentencepiece_counts_by_its_longest_text() -> None:
    def growth(longest: int) -> float:
        raw = struct.pack("<I", 4) + b"\0\0\0\0" + b"ab\0" + b"c" * longest + b"\0"
        step = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(raw).decode()}
        return text_growth({"normalizer": step})

    assert growth(18) == 18
    assert growth(1000) > MOST_GROWTH


def test_decoders_count_too_and_files_without_types() -> None:
    grows = {"pattern": {"String": "a"}, "content": "a" * 1000}
    assert text_growth({"decoder": {"type": "Sequence", "decoders": [{"type": "Replace", **grows}]}}) > MOST_GROWTH
    assert text_growth({"normalizer": {"normalizers": [grows]}}) > MOST_GROWTH


def test_many_replacements_that_do_not_meet_are_no_growth() -> None:
    steps = [normalizers.Replace(chr(0x4E00 + n), "abcdefghij") for n in range(50)]
    assert text_growth(facts_of(steps)) == 10


@pytest.mark.parametrize("facts", [None, [], {}, {"normalizer": 3}, {"normalizer": {"normalizers": [None, {}]}}])
def test_what_is_no_tokenizer_has_no_growth(facts: Any) -> None:
    assert text_growth(facts) == 1


@pytest.mark.parametrize("kind", tokenizer_builder.KINDS)
def test_every_kind_of_tokenizer_is_taken(kind: str) -> None:
    assert text_growth(json.loads(tokenizer_builder.KINDS[kind]().to_str())) <= 10
