"""The token store: what is put in comes out, and what is not whole is not there."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.encoding import EncodedDocuments
from packtool.errors import PacktoolError
from packtool.hashing import token_checksums
from packtool.token_store import TokenStore, UnitReject, UnitSummary
from packtool.tokenized import Tokenized

DIGEST = "ab" * 32
ENCODER = "quick 1.2/3"
Document = tuple[list[int], list[bool]]
documents_of_a_unit = st.lists(
    st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1, max_size=6), max_size=8
).map(lambda unit: [([id for id, _ in pairs], [mark for _, mark in pairs]) for pairs in unit])


def encoded(documents: Sequence[Document]) -> EncodedDocuments:
    return EncodedDocuments.from_tokenized([Tokenized(np.array(i, np.int32), np.array(t)) for i, t in documents])


def put(store: TokenStore, batches: Sequence[Sequence[Document]], rejects: Sequence[UnitReject] = ()) -> UnitSummary:
    """Store documents on rows 0, 2, 4, ..."""
    row = 0
    with store.writing(DIGEST, ENCODER) as writer:
        for batch in batches:
            writer.add(range(row, row + 2 * len(batch), 2), encoded(batch))
            row += 2 * len(batch)
        return writer.finish(bytes=9, rows=row + 5, records=row + 3, rejects=rejects)


@given(st.lists(documents_of_a_unit, max_size=3))
def test_what_is_put_in_comes_out_however_it_was_batched(
    tmp_path_factory: pytest.TempPathFactory, batches: list[list[Document]]
) -> None:
    store = TokenStore(tmp_path_factory.mktemp("store"), "recipe")
    summary = put(store, batches)
    assert store.find(DIGEST, [ENCODER]) == summary
    documents = [document for batch in batches for document in batch]
    stored = store.documents(summary)
    ids = np.fromfile(store.ids_path(summary), "<i4")
    assert ids.tolist() == [id for document, _ in documents for id in document]
    assert stored.lengths.tolist() == [len(document) for document, _ in documents]
    assert stored.rows.tolist() == list(range(0, 2 * len(documents), 2))
    assert stored.checksums.tolist() == token_checksums(ids.astype(np.int32), stored.lengths).tolist()
    runs, at = stored.runs.tolist(), 0
    for (_, trained), count in zip(documents, stored.run_counts.tolist(), strict=True):
        inside = [any(start <= place < stop for start, stop in runs[at : at + count]) for place in range(len(trained))]
        assert inside == trained
        at += count
    assert at == len(runs) == summary.runs
    raw = store.documents_path(summary).read_bytes()[store.runs_offset(summary) :]
    assert np.frombuffer(raw, "<i4").reshape(-1, 2).tolist() == runs


UNIT: list[list[Document]] = [[([1, 2, 3], [False, True, True])], [([4], [True]), ([5, 6], [True, False])]]
REJECTS = [UnitReject(1, 1, "empty", "é\x1b"), UnitReject(3, 3, "bad_json", "cut")]


def test_rejects_are_kept_as_they_are(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    put(store, UNIT, REJECTS)
    found = store.find(DIGEST, [ENCODER])
    assert found is not None
    assert found.rejects == tuple(REJECTS)


def test_units_of_other_content_or_another_recipe_are_not_found(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    assert store.find(DIGEST, [ENCODER]) is None
    put(store, UNIT)
    assert store.find("cd" * 32, [ENCODER]) is None
    assert store.find(DIGEST[:40] + "0" * 24, [ENCODER]) is None  # the folder's name is not the whole digest
    assert TokenStore(tmp_path, "other").find(DIGEST, [ENCODER]) is None


def cut(name: str) -> Any:
    def damage(folder: Path) -> None:
        path = folder / name
        path.write_bytes(path.read_bytes()[:-1])

    return damage


def grown(name: str) -> Any:
    def damage(folder: Path) -> None:
        with (folder / name).open("ab") as file:
            file.write(b"\0")

    return damage


def gone(name: str) -> Any:
    return lambda folder: (folder / name).unlink()


def said(**values: Any) -> Any:
    def damage(folder: Path) -> None:
        path = folder / "unit.json"
        stored = json.loads(path.read_bytes())
        unit = {**stored["unit"], **values}
        own = hashlib.sha256(json.dumps(unit).encode()).hexdigest()
        path.write_text(json.dumps({"unit": unit, "sha256": {**stored["sha256"], "unit.json": own}}))

    return damage


def rewritten(place: int, value: int) -> Any:
    """Another int32 in the file of documents, after three checksums."""

    def damage(folder: Path) -> None:
        path = folder / "documents.bin"
        raw = bytearray(path.read_bytes())
        raw[24 + 4 * place : 28 + 4 * place] = value.to_bytes(4, "little", signed=True)
        path.write_bytes(raw)
        unit = folder / "unit.json"
        stored = json.loads(unit.read_bytes())
        stored["sha256"]["documents.bin"] = hashlib.sha256(raw).hexdigest()
        unit.write_text(json.dumps(stored))

    return damage


@pytest.mark.parametrize(
    "damage",
    [
        *(cut(name) for name in ("ids.bin", "documents.bin", "unit.json")),
        *(gone(name) for name in ("ids.bin", "documents.bin", "unit.json")),
        *(grown(name) for name in ("ids.bin", "documents.bin")),
        said(digest="cd" * 32),
        said(tokens=7),
        said(tokens="6"),
        said(documents=3.0),
        said(documents=-3),
        said(runs=True),
        said(rejects=None),
        said(rejects=[{"row": 10**9, "record": 0, "reason": "empty", "detail": ""}]),
        said(rejects=[{"row": -1, "record": 0, "reason": "empty", "detail": ""}]),
        said(rejects=[{"row": 0, "record": 0, "reason": 3, "detail": ""}]),
        said(rejects=[3]),
        said(more=1),
        lambda folder: (folder / "unit.json").write_text("[]"),
        lambda folder: (folder / "unit.json").write_text("[" * 100_000),
        rewritten(0, -1),  # a row before the first
        rewritten(1, 0),  # rows that do not rise
        rewritten(2, 11),  # a row after the last
        rewritten(3, 0),  # a document without tokens
        rewritten(3, 4),  # more tokens than there are
        rewritten(6, 2),  # more runs than there are
        rewritten(6, -1),
    ],
)
def test_a_unit_that_is_not_whole_is_not_used_and_is_made_anew(damage: Any, tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    summary = put(store, UNIT, REJECTS)
    whole = {path.name: path.read_bytes() for path in store.unit_folder(DIGEST, ENCODER).iterdir()}
    damage(store.unit_folder(DIGEST, ENCODER))
    assert store.find(DIGEST, [ENCODER]) is None
    assert put(store, UNIT, REJECTS) == summary
    assert store.find(DIGEST, [ENCODER]) == summary
    assert {path.name: path.read_bytes() for path in store.unit_folder(DIGEST, ENCODER).iterdir()} == whole


@pytest.mark.parametrize("name", ["ids.bin", "documents.bin", "unit.json"])
def test_no_flipped_bit_of_a_stored_unit_changes_what_is_found(name: str, tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    summary = put(store, UNIT, REJECTS)
    path = store.unit_folder(DIGEST, ENCODER) / name
    whole = path.read_bytes()
    for place in range(8 * len(whole)):
        raw = bytearray(whole)
        raw[place // 8] ^= 1 << place % 8
        path.write_bytes(raw)
        found = store.find(DIGEST, [ENCODER])
        # a bit of unit.json may be one that JSON does not tell apart: the case of a hexadecimal digit
        assert found is None or (name == "unit.json" and found == summary), place
    path.write_bytes(whole)
    assert store.find(DIGEST, [ENCODER]) == summary


def test_rejects_of_a_unit_that_was_changed_are_an_error(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    summary = put(store, UNIT, REJECTS)
    assert store.rejects(summary) == tuple(REJECTS)
    path = store.unit_folder(DIGEST, ENCODER) / "unit.json"
    path.write_bytes(path.read_bytes().replace(b"bad_json", b"bad_jso\x6f"))
    with pytest.raises(PacktoolError, match="the token store was changed"):
        store.rejects(summary)


def test_documents_of_a_unit_that_was_cut_are_an_error(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    summary = put(store, UNIT, REJECTS)
    path = store.documents_path(summary)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(PacktoolError, match="the token store was changed"):
        store.documents(summary)


def test_a_unit_is_there_only_when_the_block_ends_well(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")

    def stop_halfway() -> None:
        with store.writing(DIGEST, ENCODER) as writer:
            writer.add([0], encoded(UNIT[0]))
            assert store.find(DIGEST, [ENCODER]) is None
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        stop_halfway()
    assert store.find(DIGEST, [ENCODER]) is None
    assert list(store.folder.iterdir()) == []


def test_of_two_that_make_the_same_unit_the_first_stays(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    with store.writing(DIGEST, ENCODER) as writer:
        writer.add([0], encoded(UNIT[0]))
        writer.finish(bytes=9, rows=1, records=1, rejects=())
        # Another run, which shares the cache, is done with it meanwhile (its temporary folder has another name).
        (store.folder / "of_another").mkdir()
        for path in next(store.folder.glob("*.tmp-*")).iterdir():
            (store.folder / "of_another" / path.name).write_bytes(path.read_bytes())
        (store.folder / "of_another").rename(store.unit_folder(DIGEST, ENCODER))
        first = (store.unit_folder(DIGEST, ENCODER) / "ids.bin").stat().st_ino
    assert (store.unit_folder(DIGEST, ENCODER) / "ids.bin").stat().st_ino == first
    assert store.find(DIGEST, [ENCODER]) is not None
    assert [path.name for path in store.folder.iterdir()] == [store.unit_folder(DIGEST, ENCODER).name]


def test_checksums_of_stretches_are_those_of_their_tokens(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    summary = put(store, UNIT)
    starts, lengths, offsets = np.array([1, 4]), np.array([2, 2], np.int32), np.array([1, 0], np.int32)
    expected = token_checksums(np.array([2, 3, 5, 6], np.int32), lengths, offsets)
    assert store.checksums(summary, starts, lengths, offsets).tolist() == expected.tolist()
    nothing = np.zeros(0, np.int32)
    assert store.checksums(summary, np.zeros(0, np.int64), nothing, nothing).tolist() == []


def test_each_encoder_has_units_of_its_own_and_the_first_one_asked_for_counts(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    made = {}
    for encoder, ids in {"slow": [1, 2], "quick 1.2": [3]}.items():
        with store.writing(DIGEST, encoder) as writer:
            writer.add([0], encoded([(ids, [True] * len(ids))]))
            made[encoder] = writer.finish(bytes=9, rows=1, records=1, rejects=())
    assert store.find(DIGEST, ["slow", "quick 1.2"]) == made["slow"]
    assert store.find(DIGEST, ["other", "quick 1.2"]) == made["quick 1.2"]
    assert store.find(DIGEST, ["quick 1.3"]) is None
    assert np.fromfile(store.ids_path(made["slow"]), "<i4").tolist() == [1, 2]
    assert np.fromfile(store.ids_path(made["quick 1.2"]), "<i4").tolist() == [3]


def test_a_unit_in_the_place_of_another_encoder_is_not_found(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    put(store, UNIT)
    store.unit_folder(DIGEST, ENCODER).rename(store.unit_folder(DIGEST, "slow"))
    assert store.find(DIGEST, ["slow", ENCODER]) is None


def test_what_is_put_down_against_an_encoder_stays_and_is_of_one_recipe(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    assert store.distrusted(ENCODER) is None
    store.distrust(ENCODER, "it gave 3 for 'é'")
    assert TokenStore(tmp_path, "recipe").distrusted(ENCODER) == "it gave 3 for 'é'"
    assert store.distrusted("quick 1.3") is None
    assert TokenStore(tmp_path, "other").distrusted(ENCODER) is None


def make_link(path: Path) -> None:
    path.symlink_to("/nonexistent/x")


@pytest.mark.parametrize("make", [Path.mkdir, make_link, os.mkfifo])
def test_what_is_no_file_put_down_against_an_encoder_counts_against_it(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    store = TokenStore(tmp_path, "recipe")
    store.distrust(ENCODER, "it gave 3 for 'é'")
    (path,) = store.folder.iterdir()
    path.unlink()
    make(path)
    assert (store.distrusted(ENCODER) or "").startswith(f"{path}: ")


def test_what_is_put_down_against_an_encoder_is_shown_in_one_short_line(tmp_path: Path) -> None:
    store = TokenStore(tmp_path, "recipe")
    store.distrust(ENCODER, "a\nb\n" * 10_000)
    told = store.distrusted(ENCODER) or ""
    assert len(told) <= 500
    assert "\n" not in told
