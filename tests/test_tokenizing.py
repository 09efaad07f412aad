"""A unit of input becomes a stored unit: found again, made anew when damaged, the same from every kind of file."""

import gzip
import json
import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from packtool import tokenizing
from packtool.config import FormatName
from packtool.encoders.proven import load_encoders
from packtool.encoding import TextEncoder
from packtool.errors import BAD_RECORD_REASONS, BadData, Refusal
from packtool.formats import SourceHead, find_shape, renderer
from packtool.readers import Unit, cut_units, head, lines, open_unit
from packtool.sources import find_sources
from packtool.token_store import STORE_FORMAT, TokenStore, UnitReject
from packtool.tokenizer import find_tokenizer, load, vocabulary_size
from packtool.tokenizing import TORN_BORDER, Recipe, TokenizedUnit, TokenizeTask, tokenize_unit
from tests.tokenizer_builder import byte_level, save, words

EOS = 1
Records = list[dict[str, Any]]


def write_lines(path: Path, records: Records) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def units_of(path: Path) -> list[Unit]:
    (source,) = find_sources([path]).sources
    return list(cut_units(source, 0))


def recipe_of(path: Path, tokenizer: Path, **changes: Any) -> Recipe:
    (source,) = find_sources([path]).sources
    good = [record for _, record in head(source) if isinstance(record, dict)]
    shape = find_shape([SourceHead("head", good)], FormatName.AUTO, {}, None)
    assert shape is not None
    files = find_tokenizer(str(tokenizer))
    recipe = Recipe(
        tokenizer=files,
        tokenizer_digest=files.digest,
        vocabulary_size=vocabulary_size(load(files)),
        bos_ids=(),
        eos_id=None if shape.format is FormatName.TOKENS else EOS,
        shape=shape,
        max_record_bytes=1 << 26,
    )
    return replace(recipe, **changes)


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return save(byte_level(("]", "{")), tmp_path / "tok", {"eos_token": "</s>"}).path.parent


def made(path: Path, recipe: Recipe, store: Path) -> TokenizedUnit:
    (unit,) = units_of(path)
    return tokenize_unit(TokenizeTask(unit, recipe, store))


def contents(made_unit: TokenizedUnit, recipe: Recipe, store: Path) -> list[tuple[int, list[int], list[list[int]]]]:
    """(row, ids, trained runs) of every document in the store."""
    stored = TokenStore(store, recipe.key)
    documents = stored.documents(made_unit.summary)
    ids = np.fromfile(stored.ids_path(made_unit.summary), "<i4").tolist()
    runs = documents.runs.tolist()
    found, token, run = [], 0, 0
    for row, length, count in zip(documents.rows, documents.lengths, documents.run_counts, strict=True):
        found.append((int(row), ids[token : token + length], runs[run : run + count]))
        token, run = token + int(length), run + int(count)
    return found


# --- what is stored ------------------------------------------------------------------------------------------


def test_texts_become_documents_in_their_rows(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "ab"}\n\n{"text": " "}\nnonsense\n{"text": 5}\n{"text": "c"}')
    recipe = recipe_of(path, tokenizer)
    unit = made(path, recipe, tmp_path / "store")
    reference = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    ab, c = reference.encode("ab").ids, reference.encode("c").ids
    assert contents(unit, recipe, tmp_path / "store") == [(0, [*ab, EOS], [[0, 3]]), (5, [*c, EOS], [[0, 2]])]
    summary = unit.summary
    assert (summary.rows, summary.records, summary.documents, summary.tokens, summary.runs) == (6, 5, 2, 5, 2)
    assert summary.encoder == "tokenizers"
    told = [(reject.row, reject.record, reject.reason) for reject in summary.rejects]
    assert told == [(2, 1, "empty"), (3, 2, "bad_json"), (4, 3, "wrong_type")]


def test_completions_become_runs(tmp_path: Path, tokenizer: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"prompt": "x]", "completion": "{y"}])
    recipe = recipe_of(path, tokenizer)
    ((row, ids, runs),) = contents(made(path, recipe, tmp_path / "store"), recipe, tmp_path / "store")
    assert (row, len(ids), runs) == (0, 4, [[1, 4]])  # x, ]{ which trains, y, EOS


def test_tokens_pass_through(tmp_path: Path, tokenizer: Path) -> None:
    records: Records = [
        {"input_ids": [5, 6, 7, 8], "labels": [-100, 6, -100, 8]},
        {"input_ids": [9, 9], "labels": [1, 1]},
        {"input_ids": [2, 5, 2], "labels": [-100, 5, -100], "attention_mask": [0, 1, 0]},
        {"input_ids": [], "labels": []},
    ]
    path = write_lines(tmp_path / "a.jsonl", records)
    recipe = recipe_of(path, tokenizer)
    unit = made(path, recipe, tmp_path / "store")
    assert contents(unit, recipe, tmp_path / "store") == [(0, [5, 6, 7, 8], [[1, 2], [3, 4]]), (2, [5], [[0, 1]])]
    assert unit.summary.encoder == "none"
    assert [(reject.row, reject.reason) for reject in unit.summary.rejects] == [(1, "bad_label"), (3, "empty")]


def test_a_text_without_a_token_is_empty(tmp_path: Path) -> None:
    tokenizer = words("a")
    tokenizer.normalizer = _without("z")
    files = save(tokenizer, tmp_path / "tok")
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "zz"}, {"text": "a z"}])
    recipe = recipe_of(path, files.path.parent)
    unit = made(path, recipe, tmp_path / "store")
    assert unit.summary.rejects == (UnitReject(1, 1, "empty", "the tokenizer gives no token for it"),)
    assert [row for row, _, _ in contents(unit, recipe, tmp_path / "store")] == [0, 2]


def _without(letter: str) -> Any:
    from tokenizers import normalizers

    return normalizers.Replace(letter, "")


def test_batches_do_not_show(tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records: Records = [{"text": "word " * (index % 7) + "x"} for index in range(2_345)]
    records[1000] = {"text": " "}
    path = write_lines(tmp_path / "a.jsonl", records)
    recipe = recipe_of(path, tokenizer)
    whole = made(path, recipe, tmp_path / "one")
    reference = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    expected = [
        (row, [*reference.encode(record["text"]).ids, EOS]) for row, record in enumerate(records) if row != 1000
    ]
    assert [(row, ids) for row, ids, _ in contents(whole, recipe, tmp_path / "one")] == expected
    monkeypatch.setattr(tokenizing, "BATCH_RECORDS", 3)
    monkeypatch.setattr(tokenizing, "BATCH_CHARACTERS", 20)
    again = made(path, recipe, tmp_path / "other")
    assert again == whole
    assert stored_bytes(tmp_path / "one") == stored_bytes(tmp_path / "other")


def stored_bytes(store: Path) -> dict[str, bytes]:
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


# --- many records at a time, and each by itself ------------------------------------------------------------


def slow(unit: Unit, recipe: Recipe, chosen: tuple[int, ...] | None) -> tuple[Any, list[UnitReject], Counter[str]]:
    """What a unit becomes, each record by itself: documents as ``contents`` gives them, rejects, notes."""
    reader = open_unit(unit)
    render = renderer(recipe.shape, columnar=reader.columnar)
    encoder = TextEncoder(load_encoders(recipe.tokenizer, fast=False), recipe.bos_ids, recipe.eos_id)
    documents, rejects, notes = [], [], Counter[str]()
    picked = [pair for number, pair in enumerate(reader.records()) if chosen is None or number in chosen]
    for number, (row, record) in enumerate(picked):
        made = record if isinstance(record, Refusal) else render(record)
        if isinstance(made, Refusal):
            bad = made is not record and made.reason in BAD_RECORD_REASONS
            detail = f"{made.detail}: {tokenizing._quoted(record)}" if bad else made.detail
            rejects.append(UnitReject(row, number, made.reason, detail))
            continue
        encoded = encoder.encode([made])
        notes.update(made.notes)
        notes.update([TORN_BORDER] * encoded.torn_borders)
        if not len(encoded.ids):
            rejects.append(UnitReject(row, number, "empty", "the tokenizer gives no token for it"))
        else:
            runs = np.stack([encoded.run_starts, encoded.run_stops], axis=1).tolist()
            documents.append((row, encoded.ids.tolist(), runs))
    return documents, rejects, notes


def odd_lines(*columns: str) -> st.SearchStrategy[bytes]:
    """A line of a file that was to have strings in these columns."""
    odd = st.sampled_from(["", " \t", "\u3000", "z", "\ud800", None, 5, ["a"], float("nan")])
    value = odd | st.text("ab ]{é\u3000z", max_size=9)
    records = st.fixed_dictionaries({}, optional=dict.fromkeys((*columns, "other"), value)).map(json.dumps)
    twice = st.sampled_from([f'{{"{columns[-1]}": 1, "{columns[-1]}": "ab"}}', "{}", "[1]", "7", "nonsense", "x" * 80])
    whole = st.fixed_dictionaries(dict.fromkeys(columns, st.text("ab ]{é", min_size=1))).map(json.dumps)
    other = st.sampled_from([b"", b" ", b"\r", b"\xff", b"\x0b", b"\xef\xbb\xbf{}", b'{"text": "\xed\xa0\x80"}'])
    ends = st.sampled_from([b"", b"\r"])
    return st.builds(lambda text, end: text.encode() + end, st.one_of(records, records, whole, twice), ends) | other


@pytest.mark.parametrize("columns", [("text",), ("prompt", "completion")])
@given(data=st.data())
def test_many_records_at_a_time_become_what_each_becomes_by_itself(
    columns: tuple[str, ...], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("many")
    made_of = byte_level(("]", "{"))
    made_of.normalizer = _without("z")
    tokenizer = save(made_of, folder / "tok", {"eos_token": "</s>"}).path.parent
    good = write_lines(folder / "good.jsonl", [dict.fromkeys(columns, "a")])
    recipe = recipe_of(good, tokenizer, max_record_bytes=60)
    found = data.draw(st.lists(odd_lines(*columns), min_size=4, max_size=16))
    path = folder / "a.jsonl"
    marks = st.sampled_from([b"", b"\n", b"\xef\xbb\xbf"])
    path.write_bytes(data.draw(marks) + b"\n".join(found) + data.draw(st.sampled_from([b"x", b"\n"])))
    (source,) = find_sources([path]).sources
    (unit,) = cut_units(source, 0, max_record_bytes=60)
    numbers = st.sets(st.integers(0, 12)).map(lambda some: tuple(sorted(some)))
    chosen = data.draw(st.none() | numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "BLOCK_BYTES", data.draw(st.sampled_from([1, 50, 200, 1 << 20])))
        patch.setattr(tokenizing, "BATCH_RECORDS", data.draw(st.sampled_from([1, 3, 100])))
        patch.setattr(tokenizing, "BATCH_CHARACTERS", data.draw(st.sampled_from([1, 20, 1000])))
        fast = tokenize_unit(TokenizeTask(unit, recipe, folder / "store", chosen))
    documents, rejects, notes = slow(unit, recipe, chosen)
    assert contents(fast, recipe, folder / "store") == documents
    assert list(fast.summary.rejects) == rejects
    assert fast.summary.notes == notes
    assert fast.summary.records == len(documents) + len(rejects)
    assert fast.summary.rows == open_unit(unit).rows


ROWS: dict[str, Records] = {
    "text": [{"text": "ab\r\nc é😀", "x": 1}, {"text": None, "x": 2}, {"text": "d", "x": None}],
    "prompt_completion": [{"prompt": "p]", "completion": "{c"}, {"prompt": "p", "completion": None}],
    "alpaca": [
        {"instruction": "i", "input": None, "output": "o"},
        {"instruction": "i", "input": "x", "output": "o"},
        {"instruction": "i", "input": "", "output": "o"},
    ],
    "labels": [
        {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "attention_mask": [1, 1, 0]},
        {"input_ids": [5, 6], "labels": [5, 5], "attention_mask": None},
        {"input_ids": [5, -6], "labels": [-100, -100], "attention_mask": [1, 0]},
        {"input_ids": None, "labels": None, "attention_mask": None},
    ],
    "mask": [{"input_ids": [5, 6], "loss_mask": [True, False]}, {"input_ids": [5], "loss_mask": [True, True]}],
}


@pytest.mark.parametrize("name", ROWS)
def test_the_same_records_from_every_kind_of_file_give_the_same_tokens(
    name: str, tmp_path: Path, tokenizer: Path
) -> None:
    records = ROWS[name]
    lines = write_lines(tmp_path / "a.jsonl", records)
    table = pa.Table.from_pylist(records)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", table.schema) as file:
        file.write_table(table)
    (tmp_path / "a.json").write_text(json.dumps(records))
    with gzip.open(tmp_path / "b.jsonl.gz", "wb") as packed:
        packed.write(lines.read_bytes())
    recipe = recipe_of(lines, tokenizer)
    outcomes = []
    for path in (lines, tmp_path / "a.parquet", tmp_path / "a.arrow", tmp_path / "a.json", tmp_path / "b.jsonl.gz"):
        assert recipe_of(path, tokenizer).key == recipe.key
        unit = made(path, recipe, tmp_path / "store")
        # What is quoted of a record ends the detail; of columns that no field needs, files with columns give none.
        details = [reject.detail.partition(": {")[0] for reject in unit.summary.rejects]
        rejects = [(reject.row, reject.reason) for reject in unit.summary.rejects], details
        outcomes.append((contents(unit, recipe, tmp_path / "store"), rejects))
    assert all(outcome == outcomes[0] for outcome in outcomes)
    assert outcomes[0][0]


# --- found again ---------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path, tokenizer: Path) -> tuple[Path, Recipe, Path, TokenizedUnit]:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "ab"}, {"text": ""}, {"text": "c"}])
    recipe = recipe_of(path, tokenizer)
    return path, recipe, tmp_path / "store", made(path, recipe, tmp_path / "store")


def test_a_unit_in_the_store_is_found_again_and_equal(
    stored: tuple[Path, Recipe, Path, TokenizedUnit], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, recipe, store, first = stored
    assert not first.reused
    before = stored_bytes(store)

    def never(_: Recipe) -> Any:
        raise AssertionError("nothing is to be encoded again")

    monkeypatch.setattr(tokenizing, "_workshop", never)
    again = made(path, recipe, store)
    assert again.reused
    assert again.summary == first.summary
    assert stored_bytes(store) == before


def test_equal_content_elsewhere_is_found_too(stored: tuple[Path, Recipe, Path, TokenizedUnit]) -> None:
    path, recipe, store, first = stored
    copy = path.with_name("copy.jsonl")
    copy.write_bytes(path.read_bytes())
    assert made(copy, recipe, store).reused
    copy.write_bytes(path.read_bytes().replace(b"ab", b"xb"))  # of the same size
    changed = made(copy, recipe, store)
    assert not changed.reused
    assert changed.summary.digest != first.summary.digest


@pytest.mark.parametrize("name", ["ids.bin", "documents.bin", "unit.json"])
@pytest.mark.parametrize("how", [lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-2])])
def test_a_damaged_unit_is_made_anew(
    name: str, how: Callable[[Path], None], stored: tuple[Path, Recipe, Path, TokenizedUnit]
) -> None:
    path, recipe, store, first = stored
    before = stored_bytes(store)
    how(TokenStore(store, recipe.key).unit_folder(first.summary.digest, "tokenizers") / name)
    again = made(path, recipe, store)
    assert not again.reused
    assert again.summary == first.summary
    assert stored_bytes(store) == before


def test_a_tokenizer_that_changed_since_the_run_began_is_noticed(tmp_path: Path, tokenizer: Path) -> None:
    path = write_lines(tmp_path / "a.jsonl", [{"text": "ab"}])
    recipe = recipe_of(path, tokenizer)
    (tokenizer / "tokenizer_config.json").write_text('{"eos_token": "<s>"}')
    with pytest.raises(BadData, match="the tokenizer changed since the run began"):
        made(path, recipe, tmp_path / "store")
    assert stored_bytes(tmp_path / "store") == {}


def test_a_text_that_cannot_be_encoded_leaves_nothing_behind(tmp_path: Path) -> None:
    files = save(words("a", unknown=False), tmp_path / "tok")
    path = write_lines(tmp_path / "a.jsonl", [{"text": "a"}, {"text": "b"}])
    with pytest.raises(BadData, match="cannot encode"):
        made(path, recipe_of(path, files.path.parent), tmp_path / "store")
    assert stored_bytes(tmp_path / "store") == {}


# --- the key -------------------------------------------------------------------------------------------------


@pytest.fixture
def recipes(tmp_path: Path, tokenizer: Path) -> tuple[Recipe, Recipe]:
    """One of texts, one of tokens."""
    text = write_lines(tmp_path / "t.jsonl", [{"text": "ab"}])
    tokens = write_lines(tmp_path / "i.jsonl", [{"input_ids": [5], "labels": [5]}])
    return recipe_of(text, tokenizer), recipe_of(tokens, tokenizer)


def test_the_key_changes_with_what_changes_tokens(
    recipes: tuple[Recipe, Recipe], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text, tokens = recipes
    other = save(byte_level(("[", "{")), tmp_path / "other")
    shape = text.shape
    keys = [
        text.key,
        tokens.key,
        replace(text, tokenizer=other).key,
        replace(text, bos_ids=(0,)).key,
        replace(text, bos_ids=(0, 0)).key,
        replace(text, eos_id=2).key,
        replace(text, eos_id=None).key,
        replace(text, max_record_bytes=5).key,
        replace(text, shape=replace(shape, columns=(("text", "body"),))).key,
        replace(text, shape=replace(shape, template="{{ a }}")).key,
        replace(text, shape=replace(shape, template="{{ b }}")).key,
        replace(tokens, vocabulary_size=7).key,
        replace(tokens, max_record_bytes=5).key,
        replace(tokens, shape=replace(tokens.shape, columns=tokens.shape.columns[:-1])).key,
    ]
    for library in ("tokenizers", "jinja2"):
        with monkeypatch.context() as patched:
            patched.setattr(tokenizing, "version", lambda name, library=library: "9" if name == library else "1")
            tokenizing._key.cache_clear()
            keys.append(text.key)
    with monkeypatch.context() as patched:
        patched.setattr(tokenizing, "STORE_FORMAT", STORE_FORMAT + 1)
        tokenizing._key.cache_clear()
        keys += [text.key, tokens.key]
    tokenizing._key.cache_clear()
    assert len(set(keys)) == len(keys)


def test_the_key_changes_with_nothing_else(recipes: tuple[Recipe, Recipe], tmp_path: Path, tokenizer: Path) -> None:
    text, tokens = recipes
    (tmp_path / "moved").mkdir()
    for file in text.tokenizer.files:
        (tmp_path / "moved" / file.name).write_bytes(file.read_bytes())
    (tmp_path / "moved" / "chat_template.jinja").write_text("{{ messages }}")
    moved = find_tokenizer(str(tmp_path / "moved"))
    assert moved.digest != text.tokenizer_digest
    assert replace(text, tokenizer=moved, tokenizer_digest=moved.digest, vocabulary_size=5).key == text.key
    assert replace(text, shape=replace(text.shape, template_origin="elsewhere")).key == text.key
    other = save(byte_level(("[", "{")), tmp_path / "other")
    assert replace(tokens, tokenizer=other, tokenizer_digest=other.digest, bos_ids=(3,), eos_id=4).key == tokens.key
    assert recipe_of(tmp_path / "t.jsonl", tokenizer).key == text.key


def test_recipes_and_tasks_travel_to_other_processes(tmp_path: Path, recipes: tuple[Recipe, Recipe]) -> None:
    text, _ = recipes
    (unit,) = units_of(tmp_path / "t.jsonl")
    task = pickle.loads(pickle.dumps(TokenizeTask(unit, text, tmp_path / "store")))
    assert task.recipe == text
    assert task.recipe.key == text.key
    assert tokenize_unit(task).summary.documents == 1
