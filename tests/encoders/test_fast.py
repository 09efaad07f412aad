"""The fast encoder: refused in one line where it cannot serve, and every failure of it is a difference."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packtool.encoders import fast
from packtool.encoders.fast import Differs, FastEncoder, Unfit, fast_encoder_name
from packtool.encoders.reference import Reference
from packtool.tokenizer import find_tokenizer
from tests.tokenizer_builder import KINDS, around, byte_level, metaspace, save, words


class Panic(BaseException):
    """As a native library raises it."""


@pytest.mark.parametrize("kind", ["byte_level", "nfc", "stripping", "prefixing", "byte_fallback"])
def test_ids_are_those_of_the_reference(kind: str, tmp_path: Path) -> None:
    files = save(KINDS[kind](), tmp_path)
    texts = ["", "ab ab", " <|l|> x <|r|>  y<|w|>z <|s|> ", "é e\u0301 😀", "</s>a<s>", "a" * 1_000]
    ours, theirs = FastEncoder(files).encode(texts), Reference(files).encode(texts)
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.lengths.tolist() == theirs.lengths.tolist()
    assert (ours.ids.dtype, ours.lengths.dtype) == (np.int32, np.int32)


def test_what_the_reference_has_switched_off_is_off(tmp_path: Path) -> None:
    tokenizer = around(byte_level(("a", "b"), ("ab", "ab")), "<s> $A </s>")
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=50, pad_id=2, pad_token="<pad>")
    files = save(tokenizer, tmp_path)
    facts = json.loads(files.path.read_text())
    facts["model"]["dropout"] = 0.9
    files.path.write_text(json.dumps(facts))
    texts = ["ab" * 20, "a", ""]
    ours, theirs = FastEncoder(files).encode(texts), Reference(files).encode(texts)
    assert ours.ids.tolist() == theirs.ids.tolist()
    assert ours.lengths.tolist() == theirs.lengths.tolist() == [10, 1, 0]


@pytest.mark.parametrize("tokenizer", [metaspace(), words("a")])
def test_a_tokenizer_it_does_not_take_is_said_in_one_line(tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(Unfit, match=r"^fastokens does not take this tokenizer: .*unsupported") as caught:
        FastEncoder(save(tokenizer, tmp_path))
    assert "\n" not in str(caught.value)


def test_without_the_library_there_is_none(sample_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise fast.PackageNotFoundError(name)

    monkeypatch.setattr(fast, "version", missing)
    fast_encoder_name.cache_clear()
    try:
        assert fast_encoder_name() is None
        with pytest.raises(Unfit, match=r"^fastokens is not installed$"):
            FastEncoder(find_tokenizer(str(sample_tokenizer)))
    finally:
        fast_encoder_name.cache_clear()


@pytest.mark.parametrize("error", [ValueError("no\nsuch"), ImportError("cannot load"), Panic("no such")])
def test_whatever_is_raised_while_it_loads_is_no_fault_of_the_user(
    error: BaseException, sample_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(fast, "_load", fail)
    with pytest.raises(Unfit, match=r"no such|cannot load"):
        FastEncoder(find_tokenizer(str(sample_tokenizer)))


def broken(ids: bytes, bounds: list[int]) -> Any:
    return lambda _: (ids, np.array(bounds, "<u8").tobytes())


def panicking(_: Any) -> Any:
    raise Panic("index out of bounds")


@pytest.mark.parametrize(
    "batch", [panicking, broken(b"\0" * 8, [0, 2]), broken(b"\0" * 8, [0, 1, 3]), broken(b"\0" * 8, [1, 1, 2]),
              broken(b"\0" * 7, [0, 1, 2]), broken(b"\0" * 8, [0, 3, 2]), broken(b"", [])]
)  # fmt: skip
def test_whatever_goes_wrong_with_a_text_is_a_difference(
    batch: Any, sample_tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = FastEncoder(find_tokenizer(str(sample_tokenizer)))
    monkeypatch.setattr(encoder, "_encode_batch", batch)
    with pytest.raises(Differs, match="it failed on a text: "):
        encoder.encode(["a", "b"])


def test_ctrl_c_stays_ctrl_c(sample_tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(_: Any) -> Any:
        raise KeyboardInterrupt

    encoder = FastEncoder(find_tokenizer(str(sample_tokenizer)))
    monkeypatch.setattr(encoder, "_encode_batch", stop)
    with pytest.raises(KeyboardInterrupt):
        encoder.encode(["a"])
