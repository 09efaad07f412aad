"""A unit of input becomes a stored unit: found again, made anew when damaged, the same from every kind of file."""

import gzip
import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from packtool import tokenizing
from packtool.config import FormatName
from packtool.errors import BadData
from packtool.formats import SourceHead, find_shape
from packtool.readers import Unit, cut_units, head
from packtool.sources import find_sources
from packtool.token_store import STORE_FORMAT, TokenStore, UnitReject
from packtool.tokenizer import find_tokenizer, load, vocabulary_size
from packtool.tokenizing import Recipe, TokenizedUnit, TokenizeTask, tokenize_unit
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
