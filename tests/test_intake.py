"""The intake: whichever encoder is used, the tokens are those of ``tokenizers``, and one difference undoes them all."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packtool import intake, tokenizing
from packtool.config import PackConfig
from packtool.encoders import fast, proof, proven
from packtool.encoders.fast import FastEncoder, fast_encoder_name
from packtool.encoders.flat_ids import FlatIds
from packtool.errors import Misuse
from packtool.progress import Notice, Progress
from packtool.run import pack
from tests import runs
from tests.tokenizer_builder import KINDS, byte_level, save

FAST = fast_encoder_name()
QUACK = "quack, and then it is found out"
"""What ``Wrong`` is wrong for as the first document of a batch, the only one that is looked at."""


class Wrong(FastEncoder):
    """Gives other tokens for texts about ducks, but never for the first of a batch."""

    def encode(self, texts: Sequence[str]) -> FlatIds:
        found = super().encode(texts)
        wrong = np.repeat(
            [(place > 0 and "duck" in text) or text == QUACK for place, text in enumerate(texts)], found.lengths
        )
        return FlatIds(np.where(wrong, 7, found.ids).astype(np.int32), found.lengths)


@pytest.fixture(autouse=True)
def _fresh_encoders() -> Iterator[None]:
    _forget()
    yield
    _forget()


def _forget() -> None:
    tokenizing._workshop.cache_clear()
    tokenizing._encoder.cache_clear()


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast encoder that is wrong, and looked at so little that some of what it does is stored; many units."""
    monkeypatch.setattr(proven, "FastEncoder", Wrong)
    monkeypatch.setattr(proof, "WHOLE_CHARACTERS", 0)
    monkeypatch.setattr(proof, "CHECKED_CHARACTERS", 1)
    monkeypatch.setattr(proof, "CHECKED_PART", 1 << 40)
    monkeypatch.setattr(intake, "_is_worth_loading", lambda *_: True)
    runs.small_units(monkeypatch, 4_000)


def texts(path: Path, *, ends_with: str | None = None) -> Path:
    """Documents that ``Wrong`` gets wrong unseen, in many units; and at the end one where it is seen."""
    records = [{"text": f"{n} a duck swims " * (1 + n % 5)} for n in range(300)]
    if ends_with is not None:
        records += [{"text": "x" * 4_000}, {"text": ends_with}]
    return runs.write_jsonl(path, records)


def encoders(output: Path) -> list[str]:
    found: list[str] = json.loads((output / "run.json").read_bytes())["encoders"]
    return found


def packed(source: Path | list[Path], output: Path, **options: Any) -> tuple[list[str], list[str]]:
    """The encoders a run used, and the notices that told of a fast one."""
    heard = runs.Heard([])
    pack(runs.config(source, output, **options), heard)
    return encoders(output), [text for text in heard.notices if "cannot be trusted" in text]


# --- equal bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["text", "instructions", "chat"])
def test_bytes_do_not_depend_on_the_encoder(name: str, tmp_path: Path, sample_data: Path) -> None:
    source = sample_data / f"{name}.jsonl"
    used = {
        encoder: packed(source, tmp_path / encoder, encoder=encoder, max_length=1024, limit=150)[0]
        for encoder in ("tokenizers", "fastokens", "auto")
    }
    assert used == {"tokenizers": ["tokenizers"], "fastokens": [FAST], "auto": [FAST]}
    wanted = runs.content(tmp_path / "tokenizers")
    assert runs.content(tmp_path / "fastokens") == runs.content(tmp_path / "auto") == wanted


ODD = [
    "<|l|> a <|l|>b  <|r|>  c <|w|>d<|w|> <|s|> e</s> f <s>",
    "e\u0301 é \u0301 Å A\u030a",
    "".join(chr(code) for code in range(0, 0x110000, 4_099) if not 0xD800 <= code < 0xE000),
    "ab" * 50_000,
    "字" * 30_000,
    " ",
    "\n\n\t  x",
]


@pytest.mark.parametrize("kind", ["byte_level", "nfc", "stripping", "prefixing", "byte_fallback", "metaspace"])
@pytest.mark.parametrize("format", ["text", "prompt_completion"])
def test_bytes_do_not_depend_on_the_encoder_for_tokenizers_of_every_kind(
    kind: str, format: str, tmp_path: Path
) -> None:
    tokenizer = save(KINDS[kind](), tmp_path / "tok", {"eos_token": "</s>"}).path.parent
    pairs = [{"prompt": one, "completion": other} for one in ODD for other in ODD[:3]]
    records = [{"text": text} for text in ODD] if format == "text" else pairs
    source = runs.write_jsonl(tmp_path / "a.jsonl", records)
    options = {"tokenizer": str(tokenizer), "max_length": 100_000, "bos": "no"}
    packed(source, tmp_path / "slow", encoder="tokenizers", **options)
    used, _ = packed(source, tmp_path / "auto", encoder="auto", **options)
    assert used == ["tokenizers" if kind in ("byte_fallback", "metaspace") else FAST]
    assert runs.content(tmp_path / "auto") == runs.content(tmp_path / "slow")


def test_workers_find_out_for_themselves_what_the_fast_encoder_does_not_take(tmp_path: Path) -> None:
    tokenizer = save(KINDS["metaspace"](), tmp_path / "tok", {"eos_token": "</s>"}).path.parent
    sources = [runs.write_jsonl(tmp_path / f"{n}.jsonl", [{"text": f"ab c{n} "}] * 500) for n in range(3)]
    used, told = packed(sources, tmp_path / "out", workers=2, tokenizer=str(tokenizer), bos="no")
    assert (used, told) == (["tokenizers"], [])


# --- one difference ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoder", ["auto", "fastokens"])
@pytest.mark.usefixtures("wrong")
def test_one_difference_undoes_every_unit_of_the_run_and_is_told_once(encoder: str, tmp_path: Path) -> None:
    source = texts(tmp_path / "a.jsonl", ends_with=QUACK)
    used, told = packed(source, tmp_path / "out", encoder=encoder)
    assert used == ["tokenizers"]
    assert told == [
        f"{FAST} cannot be trusted with this tokenizer: it gave other tokens than tokenizers for '{QUACK}'; "
        "all of the input is encoded with tokenizers"
    ]
    packed(source, tmp_path / "wanted", encoder="tokenizers")
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


@pytest.mark.usefixtures("wrong")
def test_units_of_earlier_runs_are_undone_too(tmp_path: Path) -> None:
    first, second = texts(tmp_path / "a.jsonl"), texts(tmp_path / "b.jsonl", ends_with=QUACK)
    cache = tmp_path / "cache"
    assert packed(first, tmp_path / "first", cache_dir=cache) == ([FAST], [])
    packed(first, tmp_path / "wanted", encoder="tokenizers")
    assert runs.content(tmp_path / "first") != runs.content(tmp_path / "wanted")  # nobody looked
    used, told = packed([first, second], tmp_path / "both", cache_dir=cache)
    assert (used, len(told)) == (["tokenizers"], 1)
    packed([first, second], tmp_path / "wanted-both", encoder="tokenizers")
    assert runs.content(tmp_path / "both") == runs.content(tmp_path / "wanted-both")
    # What was put down against it stays with the cache.
    used, told = packed(first, tmp_path / "first", cache_dir=cache, overwrite=True)
    assert (used, len(told)) == (["tokenizers"], 1)
    assert runs.content(tmp_path / "first") == runs.content(tmp_path / "wanted")


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.usefixtures("wrong")
def test_a_run_that_stops_anywhere_and_goes_on_ends_the_same(tmp_path: Path, step: int) -> None:
    source = texts(tmp_path / "a.jsonl", ends_with=QUACK)
    packed(source, tmp_path / "wanted", encoder="tokenizers")
    wanted = runs.content(tmp_path / "wanted")
    heard = runs.Heard([])
    pack(runs.config(source, tmp_path / "whole"), heard)
    for point in range(step // 2, len(heard.events), step):
        output = tmp_path / str(point)
        left = point

        def stop(_: Progress | Notice) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            pack(runs.config(source, output), stop)
        packed(source, output)
        assert runs.content(output) == wanted, point


@pytest.mark.usefixtures("wrong")
def test_shards_of_tokens_that_nobody_trusts_any_more_are_written_again(tmp_path: Path) -> None:
    source, output = texts(tmp_path / "a.jsonl"), tmp_path / "out"
    options: dict[str, Any] = {"shards": 3, "max_length": 64}

    def stop_after_a_shard(event: Progress | Notice) -> None:
        if isinstance(event, Progress) and event.stage == "write" and event.done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(runs.config(source, output, encoder="fastokens", **options), stop_after_a_shard)
    packed(source, output, encoder="tokenizers", **options)
    packed(source, tmp_path / "wanted", encoder="tokenizers", **options)
    assert runs.content(output) == runs.content(tmp_path / "wanted")


@pytest.mark.usefixtures("wrong")
def test_another_run_that_finds_it_out_meanwhile_counts(tmp_path: Path) -> None:
    source = texts(tmp_path / "a.jsonl")
    packed(source, tmp_path / "wanted", encoder="tokenizers")
    heard = runs.Heard([])

    def of_another(event: Progress | Notice) -> None:
        heard(event)
        if isinstance(event, Progress) and event.done:
            (recipe,) = (tmp_path / "cache").iterdir()
            (recipe / f"distrusted-{str(FAST).replace(' ', '-')}").write_text("it gave other tokens")

    pack(runs.config(source, tmp_path / "out", cache_dir=tmp_path / "cache"), of_another)
    assert sum("cannot be trusted" in text for text in heard.notices) == 1
    assert encoders(tmp_path / "out") == ["tokenizers"]
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


@pytest.mark.skipif(FAST != "fastokens 0.3.5", reason="a fault of that version")
def test_a_real_difference_is_found_by_workers(tmp_path: Path) -> None:
    # It takes the name of a byte in a text for the byte, where "<" is not in the vocabulary.
    tokenizer = save(KINDS["byte_fallback"](), tmp_path / "tok", {"eos_token": "</s>"}).path.parent
    sources = [runs.write_jsonl(tmp_path / f"{n}.jsonl", [{"text": f"<0x0A> {n} " * 50}] * 50) for n in range(3)]
    options: dict[str, Any] = {"tokenizer": str(tokenizer), "bos": "no", "workers": 2}
    used, told = packed(sources, tmp_path / "out", **options)
    assert (used, len(told)) == (["tokenizers"], 1)
    packed(sources, tmp_path / "wanted", encoder="tokenizers", **options)
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


# --- what is used --------------------------------------------------------------------------------------------


def reused(output: Path) -> int:
    found: int = json.loads((output / "run.json").read_bytes())["reused_units"]
    return found


def test_units_of_another_encoder_are_used_only_if_they_are_the_references(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, cache = texts(tmp_path / "a.jsonl"), tmp_path / "cache"
    packed(source, tmp_path / "1", cache_dir=cache, encoder="fastokens")
    packed(source, tmp_path / "2", cache_dir=cache, encoder="fastokens")
    assert reused(tmp_path / "2") > 0
    used, _ = packed(source, tmp_path / "3", cache_dir=cache, encoder="tokenizers")
    assert (used, reused(tmp_path / "3")) == (["tokenizers"], 0)
    used, _ = packed(source, tmp_path / "4", cache_dir=cache, encoder="auto")
    assert (used, reused(tmp_path / "4")) == (["tokenizers"], reused(tmp_path / "2"))
    monkeypatch.setattr(fast, "version", lambda _: "99")
    fast_encoder_name.cache_clear()
    _forget()
    try:
        other = tmp_path / "other"
        packed(source, tmp_path / "5", cache_dir=other, encoder="fastokens")
    finally:
        monkeypatch.undo()
        fast_encoder_name.cache_clear()
        _forget()
    used, _ = packed(source, tmp_path / "6", cache_dir=other, encoder="fastokens")
    assert (used, reused(tmp_path / "6")) == ([FAST], 0)


def test_the_encoder_is_no_part_of_the_command(tmp_path: Path) -> None:
    source = texts(tmp_path / "a.jsonl")
    packed(source, tmp_path / "out", encoder="tokenizers")
    before = runs.state(tmp_path / "out")
    heard = runs.Heard([])
    pack(runs.config(source, tmp_path / "out", encoder="fastokens"), heard)
    assert heard.notices == ["this command is done already; nothing was changed"]
    assert runs.state(tmp_path / "out") == before


def test_a_fast_encoder_is_not_loaded_for_less_than_it_costs(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}] * 2_000)
    used, _ = packed(source, tmp_path / "tiny", limit=10)
    assert used == ["tokenizers"]
    used, _ = packed(source, tmp_path / "small", limit=10, encoder="fastokens")
    assert used == [FAST]
    assert runs.content(tmp_path / "tiny") == runs.content(tmp_path / "small")


def test_asked_for_by_name_where_it_cannot_be_is_misuse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "ab"}])
    tokenizer = save(KINDS["metaspace"](), tmp_path / "tok", {"eos_token": "</s>"}).path.parent
    options: dict[str, Any] = {"encoder": "fastokens", "bos": "no"}
    with pytest.raises(Misuse, match=r"^--encoder fastokens: fastokens does not take this tokenizer: .*Metaspace"):
        runs.run(source, tmp_path / "out", tokenizer=str(tokenizer), **options)
    with monkeypatch.context() as patched:
        patched.setattr("packtool.encoders.fast.fast_encoder_name", lambda: None)
        with pytest.raises(Misuse, match=r"^--encoder fastokens: fastokens is not installed"):
            runs.run(source, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_without_the_library_everything_is_encoded_by_tokenizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = texts(tmp_path / "a.jsonl")
    monkeypatch.setattr("packtool.intake.fast_encoder_name", lambda: None)
    assert packed(source, tmp_path / "out") == (["tokenizers"], [])


def test_tokens_are_encoded_by_nobody_whatever_was_asked_for(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [4, 5, 6]}])
    tokenizer = save(byte_level(), tmp_path / "tok", {"eos_token": "</s>"}).path.parent
    for encoder in ("tokenizers", "fastokens", "auto"):
        used, _ = packed(source, tmp_path / encoder, encoder=encoder, tokenizer=str(tokenizer))
        assert used == ["none"]


def test_the_name_is_one_of_three() -> None:
    with pytest.raises(Misuse, match=r"^--encoder: .*'auto', 'tokenizers' or 'fastokens'"):
        PackConfig.checked({"sources": ["a"], "output": "o", "tokenizer": "t", "encoder": "quick"})
