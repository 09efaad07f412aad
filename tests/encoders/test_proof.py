"""The proof: any one wrong token among what is compared is found, and what is compared depends on the texts alone."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.encoders.fast import Differs, FastEncoder
from packtool.encoders.flat_ids import FlatIds
from packtool.encoders.proof import CHECKED_CHARACTERS, CHECKED_PART, HARD_TEXTS, WHOLE_CHARACTERS, Proof, chosen
from packtool.encoders.reference import Reference
from packtool.tokenizer import find_tokenizer
from tests.tokenizer_builder import save, stripping, words

SAMPLE = Path(__file__).parents[2] / "sample_data" / "tokenizer"


class Stub:
    """An encoder that gives the reference's ids, changed where ``change`` says so."""

    name = "stub 1"

    def __init__(self, reference: Reference, change: Callable[[str, list[int]], list[int]]) -> None:
        self._reference = reference
        self._change = change

    def encode(self, texts: Sequence[str]) -> FlatIds:
        lists = [self._reference.encode([text]).ids.tolist() for text in texts]
        return FlatIds.of([self._change(text, ids) for text, ids in zip(texts, lists, strict=True)])


@cache
def reference() -> Reference:
    return Reference(find_tokenizer(str(SAMPLE)))


def stub(change: Callable[[str, list[int]], list[int]]) -> FastEncoder:
    return Stub(reference(), change)  # type: ignore[return-value]


@pytest.mark.parametrize("hard", HARD_TEXTS[1:])
def test_one_wrong_token_of_one_hard_text_is_enough(hard: str) -> None:
    encoder = stub(lambda text, ids: [*ids[:-1], ids[-1] ^ 1] if text == hard else ids)
    with pytest.raises(Differs, match="it gave other tokens than tokenizers for ") as caught:
        Proof(encoder, reference())
    assert ascii(hard[:60])[1:-1] in str(caught.value)


@pytest.mark.parametrize("content", ["<|l|>", "<|r|>", "<|w|>", "<|s|>", "</s>"])
def test_added_tokens_are_tried_in_every_place(content: str, tmp_path: Path) -> None:
    own = Reference(save(stripping(), tmp_path))
    seen: list[str] = []
    Proof(Stub(own, lambda text, ids: seen.append(text) or ids), own)  # type: ignore[arg-type, func-returns-value]
    for place in (f"{content}a", f"a {content} b", f"b{content}{content}\n{content}"):
        assert any(place in text for text in seen), place


def test_a_vocabularys_own_entries_are_tried() -> None:
    seen: list[str] = []
    Proof(stub(lambda text, ids: seen.append(text) or ids), reference())  # type: ignore[func-returns-value]
    entries = {reference().tokenizer.decode([id]) for id in range(reference().tokenizer.get_vocab_size())}
    assert len(entries & set(seen)) > 100


def test_texts_that_the_tokenizer_itself_cannot_encode_prove_nothing(tmp_path: Path) -> None:
    own = Reference(save(words("a", unknown=False), tmp_path))

    def encode(texts: Sequence[str]) -> FlatIds:
        return FlatIds.of([[3] if text.split() == ["a"] else [] for text in texts])

    encoder = Stub(own, lambda _, ids: ids)
    encoder.encode = encode  # type: ignore[method-assign]
    with pytest.raises(Differs):
        Proof(encoder, own)  # type: ignore[arg-type]


documents = st.lists(
    st.one_of(st.text("ab ", max_size=8), st.sampled_from(["x" * 900, "y" * 5_000, "é" * 30, "z " * 3_000, ""])),
    min_size=1,
    max_size=40,
)


@given(documents, st.data())
def test_one_wrong_token_of_a_small_batch_is_enough(texts: list[str], data: st.DataObject) -> None:
    proof = Proof.__new__(Proof)
    proof._reference, proof._fast = reference(), stub(lambda _, ids: ids)
    texts = [text[:400] for text in texts]
    found = reference().encode(texts)
    proof.check(texts, found)
    if len(found.ids):
        wrong = found.ids.copy()
        wrong[data.draw(st.integers(0, len(wrong) - 1))] ^= 1
        with pytest.raises(Differs):
            proof.check(texts, FlatIds(wrong, found.lengths))


def test_a_token_that_slips_to_the_next_document_is_found() -> None:
    proof = Proof.__new__(Proof)
    proof._reference, proof._fast = reference(), stub(lambda _, ids: ids)
    texts = ["one two", "three four"]
    found = reference().encode(texts)
    with pytest.raises(Differs):
        proof.check(texts, FlatIds(found.ids, found.lengths + np.array([1, -1], np.int32)))


@given(st.lists(st.text("ab", max_size=9), min_size=1, max_size=7), st.integers(9_000, 12_000))
def test_one_character_in_256_is_compared_however_short_the_documents_are(texts: list[str], times: int) -> None:
    texts = texts * times
    whole, stretches = chosen(texts)
    assert stretches == []
    assert sum(len(texts[index]) for index in whole) >= sum(map(len, texts)) // CHECKED_PART


@given(documents, st.integers(1, 50))
def test_what_is_compared_of_a_large_batch_is_fixed_spread_and_bounded(texts: list[str], times: int) -> None:
    texts = texts * times
    whole, stretches = chosen(texts)
    assert (whole, stretches) == chosen(list(texts))
    assert whole == sorted(set(whole))
    touched = {*whole, *(index for index, _, _ in stretches)}
    assert len(touched) == len(whole) + len(stretches)
    if sum(map(len, texts)) <= WHOLE_CHARACTERS:
        assert whole == list(range(len(texts)))
        return
    compared = sum(len(texts[index]) for index in whole) + sum(stop - start for _, start, stop in stretches)
    assert compared >= max(CHECKED_CHARACTERS, sum(map(len, texts)) // CHECKED_PART) or len(touched) == len(texts)
    assert compared <= max(CHECKED_CHARACTERS, sum(map(len, texts)) // CHECKED_PART) + 512
    assert all(0 <= start < stop <= len(texts[index]) for index, start, stop in stretches)
    longest = max(range(len(texts)), key=lambda index: len(texts[index]))
    assert {0, len(texts) - 1, longest} <= touched
    if any(not text.isascii() for text in texts):
        assert any(not texts[index].isascii() for index in touched)


def test_a_stretch_of_a_long_document_is_compared() -> None:
    wrong = stub(lambda text, ids: [0, *ids] if 0 < len(text) < 100_000 else ids)
    proof = Proof.__new__(Proof)
    proof._reference, proof._fast = reference(), wrong
    texts = ["word " * 20_000]
    with pytest.raises(Differs):
        proof.check(texts, reference().encode(texts))
