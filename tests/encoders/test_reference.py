"""The reference: ids with offsets are ids without, and what cannot be encoded is told in one line."""

from pathlib import Path

import pytest
from tokenizers import Regex, normalizers

from packtool.encoders.reference import Reference, forget_handed_on, hand_on
from packtool.errors import BadData
from packtool.tokenizer import load
from tests.tokenizer_builder import KINDS, around, byte_level, save, words


@pytest.mark.parametrize("kind", KINDS)
def test_offsets_change_no_id(kind: str, tmp_path: Path) -> None:
    reference = Reference(save(KINDS[kind](), tmp_path))
    texts = ["ab ab", "", " <|l|> x <|r|>  y é e\u0301 😀", "</s>a<s>"]
    lists = [encoding.ids for encoding in reference.encode_with_offsets(texts)]
    found = reference.encode(texts)
    assert [ids.tolist() for ids in found.each(range(len(texts)))] == lists


def test_it_adds_nothing(tmp_path: Path) -> None:
    reference = Reference(save(around(byte_level(), "<s> $A </s>"), tmp_path))
    assert reference.encode(["ab"]).ids.tolist() == byte_level().encode("ab").ids


def test_what_it_cannot_encode_is_told_in_one_line(tmp_path: Path) -> None:
    reference = Reference(save(words("a", unknown=False), tmp_path))
    for encode in (reference.encode, reference.encode_with_offsets):
        with pytest.raises(BadData, match=r"tokenizer\.json: cannot encode the texts: .*UNK"):
            encode(["a", "b"])


def test_a_panic_is_told_in_one_line_and_by_nothing_else(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tokenizer = byte_level()
    tokenizer.normalizer = normalizers.Replace(Regex("(?=q)"), "b")
    reference = Reference(save(tokenizer, tmp_path))
    for encode in (reference.encode, reference.encode_with_offsets):
        with pytest.raises(BadData, match=r"tokenizer\.json: cannot encode the texts: index out of bounds"):
            encode(["a", "q"])
    assert capfd.readouterr().err == ""


def test_a_tokenizer_that_was_loaded_is_taken_over_once_and_only_if_nothing_changed(tmp_path: Path) -> None:
    files = save(byte_level(("a", "b")), tmp_path)
    loaded = load(files)
    hand_on(files.digest, loaded)
    assert Reference(files).tokenizer is loaded
    assert Reference(files).tokenizer is not loaded
    hand_on(files.digest, loaded)
    save(byte_level(("b", "c")), tmp_path)
    assert Reference(files).tokenizer is not loaded
    hand_on(files.digest, loaded)
    forget_handed_on()
    assert Reference(files).tokenizer is not loaded


def test_what_is_taken_over_adds_nothing(tmp_path: Path) -> None:
    files = save(around(byte_level(), "<s> $A </s>"), tmp_path)
    hand_on(files.digest, load(files))
    assert Reference(files).encode(["ab"]).ids.tolist() == byte_level().encode("ab").ids
