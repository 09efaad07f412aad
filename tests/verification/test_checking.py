"""Every check against datasets that are wrong in its way, as they are and with the manifest made to agree."""

import json
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool import BadData
from packtool.contract import IGNORED
from packtool.errors import PacktoolError
from packtool.manifest import MANIFEST_NAME
from packtool.progress import Progress
from packtool.rejects import Reject
from packtool.scratch import scratch_folder
from packtool.shards import SCHEMA
from packtool.verification import CHECKS, Check, VerifyReport, verify
from tests.dataset_builder import (
    Document,
    Recipe,
    Stretch,
    change_manifest,
    change_shards,
    document,
    make_dataset,
    remake,
    sample,
    with_rows,
)
from tests.runs import Heard

FIRST_SHARD = "train-00000-of-00002.parquet"
Columns = dict[str, list[int]]
Damage = Callable[[Path], None]


OF_PACKS = set(CHECKS) - {"manifest_files", "stray_files", "card", "manifest", "tokenizer", "schema", "source"}
MADE = [name for name in CHECKS if name != "source"]
"""The checks that are made without sources."""


OF_THE_PLAN = {"manifest", "pieces", "packing"}
"""What the hand-made datasets cannot pass: they follow no plan, and their manifests name no options."""


def faulty(report: VerifyReport) -> set[str]:
    """The checks that found a fault."""
    return {check.name for check in report.checks if check.faults} - OF_THE_PLAN


def sound(report: VerifyReport) -> bool:
    """Whether a hand-made dataset has passed all that it can."""
    return {check.name for check in report.checks if not check.ok} == OF_THE_PLAN


def check_of(report: VerifyReport, name: str) -> Check:
    (check,) = (check for check in report.checks if check.name == name)
    return check


@pytest.mark.parametrize("pad", [False, True])
def test_a_sound_dataset_passes_every_check(tmp_path: Path, pad: bool) -> None:
    manifest = make_dataset(tmp_path / "ds", sample(pad))
    report = verify(tmp_path / "ds")
    assert sound(report)
    assert [check.name for check in report.checks] == MADE
    assert (report.packs, report.segments, report.tokens) == (manifest.packs, manifest.segments, manifest.tokens.out)
    assert {check.name for check in report.checks if not check.checked} == {"pieces", "packing"}


def test_no_room_for_what_is_sorted_is_one_line_that_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dataset(tmp_path / "ds", sample())
    (tmp_path / "work").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "work"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (256, limits[1]))
    try:
        with scratch_folder():
            pass  # there is room for the folder itself
        with pytest.raises(PacktoolError, match=r"packtool-scratch-.*: File too large; set TMPDIR to a place"):
            verify(tmp_path / "ds")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list((tmp_path / "work").iterdir()) == []


# -- damage to the packs: name of the check, what is done, and a part of the detail --------------------------


def in_shard(change: Callable[[Columns], None], shard: int = 0) -> Damage:
    return lambda folder: change_shards(folder, change, shard)


def setting(column: str, index: int, value: int) -> Damage:
    def change(columns: Columns) -> None:
        columns[column][index] = value

    return in_shard(change)


def token_changed(columns: Columns) -> None:
    columns["input_ids"][3] = columns["labels"][3] = 77


def tokens_swapped(columns: Columns) -> None:
    for column in ("input_ids", "labels"):
        values = columns[column]
        values[3], values[4] = values[4], values[3]


def segments_merged(columns: Columns) -> None:
    """The first two segments become one, with positions that fit."""
    columns["seq_lengths"][:2] = [16]
    columns["doc_ids"][:2] = [0]
    columns["doc_offsets"][:2] = [0]
    columns["position_ids"][:16] = range(16)
    columns["pack_segments"][0] = 1


def segment_split(columns: Columns) -> None:
    """A whole document becomes two, of which the second has an id that was free."""
    columns["seq_lengths"][:1] = [4, 6]
    columns["doc_ids"][:1] = [0, 20]
    columns["doc_offsets"][:1] = [0, 0]
    columns["position_ids"][:10] = [*range(4), *range(6)]
    columns["labels"][4] = IGNORED
    columns["pack_segments"][0] = 3


def boundary_moved(columns: Columns) -> None:
    """The boundary between the first two segments is one token late, and everything else agrees with it."""
    columns["seq_lengths"][:2] = [11, 5]
    columns["position_ids"][:16] = [*range(11), *range(5)]
    columns["labels"][10] = columns["input_ids"][10]
    columns["labels"][11] = IGNORED


def documents_swapped(columns: Columns) -> None:
    """Two documents of the pack of 8 and 8 change names."""
    columns["doc_ids"][0], columns["doc_ids"][1] = columns["doc_ids"][1], columns["doc_ids"][0]


def document_again(columns: Columns) -> None:
    """The second document of the first pack is in it twice, as whole and as a part."""
    columns["doc_ids"][1] = columns["doc_ids"][0]
    columns["doc_offsets"][1] = 6


def document_lost(columns: Columns) -> None:
    """The last segment of the first pack is not there."""
    for column in ("input_ids", "labels", "position_ids"):
        del columns[column][10:16]
    for column in ("seq_lengths", "doc_ids", "doc_offsets"):
        del columns[column][1]
    columns["pack_tokens"][0], columns["pack_segments"][0] = 10, 1


def label_dropped(columns: Columns) -> None:
    columns["labels"][5] = IGNORED


def labels_shifted(columns: Columns) -> None:
    columns["labels"][:15] = columns["labels"][1:16]


def untrained_pack(columns: Columns) -> None:
    columns["labels"][16:32] = [IGNORED] * 16


def positions_of_the_pack(columns: Columns) -> None:
    columns["position_ids"][:16] = range(16)


def positions_from_one(columns: Columns) -> None:
    columns["position_ids"][:10] = range(1, 11)


def positions_of_the_document(columns: Columns) -> None:
    """The piece that starts at token 32 of its document goes on counting there."""
    first = 16 + 16 + 15
    columns["position_ids"][first : first + 8] = range(32, 40)


def too_long(columns: Columns) -> None:
    """The first pack gets one token more than max_length, as a part of its last segment."""
    columns["input_ids"].insert(16, 50)
    columns["labels"].insert(16, 50)
    columns["position_ids"].insert(16, 6)
    columns["seq_lengths"][1] += 1
    columns["pack_tokens"][0] += 1


def empty_segment(columns: Columns) -> None:
    columns["seq_lengths"].insert(1, 0)
    columns["doc_ids"].insert(1, 20)
    columns["doc_offsets"].insert(1, 0)
    columns["pack_segments"][0] += 1


def padding_unpadded(columns: Columns) -> None:
    columns["doc_ids"][1] = -1


PACK_DAMAGE: list[tuple[str, Damage, str]] = [
    ("sums", setting("seq_lengths", 0, 9), "pack 0: seq_lengths sum to 15, but it has 16 tokens"),
    ("sums", setting("seq_lengths", 2, -16), "pack 1: segment 0 has length -16; expected at least 1"),
    ("sums", in_shard(empty_segment), "pack 0: segment 1 has length 0; expected at least 1"),
    ("sums", in_shard(too_long), "pack 0: 17 tokens; expected at most 16"),
    ("positions", in_shard(positions_of_the_pack), "pack 0: token 10: position 10; expected 0"),
    ("positions", in_shard(positions_from_one), "pack 0: token 0: position 1; expected 0"),
    ("positions", in_shard(positions_of_the_document), "pack 3: token 0: position 32; expected 0"),
    ("positions", setting("position_ids", 31, 14), "pack 1: token 15: position 14; expected 15"),
    ("labels", setting("labels", 20, 11), "pack 1: token 4: label 11; expected"),
    ("labels", in_shard(labels_shifted), "pack 0: token 0: label"),
    ("labels", in_shard(untrained_pack), "pack 1: no trained token"),
    ("segment_starts", lambda folder: trained_start(folder, 10), "pack 0: segment 1: its first token has label"),
    ("segment_starts", lambda folder: trained_start(folder, 16), "pack 1: segment 0: its first token has label"),
    ("padding", in_shard(padding_unpadded), "pack 0: segment 1: padding, but the dataset is not padded"),
    ("padding", in_shard(padding_unpadded, shard=1), "pack 5: segment 1: padding, but the dataset is not padded"),
    ("vocabulary", setting("input_ids", 17, 500), "pack 1: token 1: id 500; the vocabulary has 500"),
    ("vocabulary", setting("input_ids", 1, -1), "pack 0: token 1: id -1; the vocabulary has 500"),
    ("documents", setting("doc_ids", 0, 100), "pack 0: segment 0: doc_id 100 belongs to no source"),
    ("documents", setting("doc_ids", 2, -2), "pack 1: segment 0: doc_id -2 belongs to no source"),
    ("documents", setting("doc_offsets", 1, -6), "pack 0: segment 1: doc_offset -6; expected at least 0"),
    ("documents", in_shard(document_again), "pack 0: segment 1: document 0 again, overlapping itself"),
    ("documents", setting("doc_offsets", 2, 30), "pack 6: segment 0: starts at token 16 of document 41"),
    (
        "documents",
        setting("doc_offsets", 5, 15),
        "pack 2: segment 2: starts at token 15 of document 60",
    ),
    ("conservation", in_shard(token_changed), "source 'a.jsonl': checksum"),
    ("conservation", in_shard(tokens_swapped), "source 'a.jsonl': checksum"),
    ("conservation", in_shard(segments_merged), "source 'a.jsonl': documents"),
    ("conservation", in_shard(segment_split), "source 'a.jsonl': documents"),
    ("conservation", in_shard(boundary_moved), "source 'a.jsonl': checksum"),
    ("conservation", in_shard(documents_swapped, shard=1), "source 'a.jsonl': checksum"),
    ("conservation", in_shard(document_lost), "source 'a.jsonl': documents"),
    ("conservation", in_shard(label_dropped), "trained_tokens"),
    ("conservation", setting("doc_ids", 0, 20), "source 'a.jsonl': checksum"),
    ("conservation", setting("doc_offsets", 7, 8), "source 'c.jsonl': checksum"),
]


def trained_start(folder: Path, token: int) -> None:
    def change(columns: Columns) -> None:
        columns["labels"][token] = columns["input_ids"][token]

    change_shards(folder, change)


@pytest.mark.parametrize("agreeing", [False, True], ids=["as_it_is", "manifest_agrees"])
@pytest.mark.parametrize(("name", "damage", "detail"), PACK_DAMAGE)
def test_damaged_packs_are_found_by_the_check_of_that_damage(
    tmp_path: Path, name: str, damage: Damage, detail: str, agreeing: bool
) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    damage(folder)
    if agreeing:
        remake(folder)
    report = verify(folder)
    assert not sound(report)
    assert detail in check_of(report, name).detail
    assert name in faulty(report)
    assert ("manifest_files" in faulty(report)) != agreeing


# -- padding: the sample's fourth pack has 16 tokens, its third 15 and one of padding ------------------------


def pad_is_two_segments(columns: Columns) -> None:
    at = columns["doc_ids"].index(-1)
    tokens = sum(columns["seq_lengths"][:at])
    length = columns["seq_lengths"][at]
    columns["seq_lengths"][at : at + 1] = [1, length - 1]
    columns["doc_ids"].insert(at, -1)
    columns["doc_offsets"].insert(at, 0)
    columns["position_ids"][tokens : tokens + length] = [0, *range(length - 1)]
    columns["pack_segments"][4] += 1


def pad_comes_first(columns: Columns) -> None:
    """In the last pack the padding changes places with the document before it, of another length."""
    tokens = sum(columns["seq_lengths"][: columns["doc_ids"].index(99)])
    document_length, pad_length = columns["seq_lengths"][-2:]
    middle = tokens + document_length
    for column in ("input_ids", "labels", "position_ids"):
        values = columns[column]
        values[tokens:] = values[middle:] + values[tokens:middle]
    columns["seq_lengths"][-2:] = [pad_length, document_length]
    columns["doc_ids"][-2:] = [-1, 99]


def on_padding(column: str, value: int) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[column][-1] = value

    return change


def pad_is_cut(columns: Columns) -> None:
    for column in ("input_ids", "labels", "position_ids"):
        columns[column].pop()
    columns["seq_lengths"][-1] -= 1
    columns["pack_tokens"][-1] -= 1


PADDING_DAMAGE: list[tuple[str, Callable[[Columns], None], str]] = [
    ("padding", pad_is_two_segments, "pack 9: segment 3: padding that is not its pack's one last segment"),
    ("padding", pad_comes_first, "pack 9: segment 2: padding that is not its pack's one last segment"),
    ("padding", on_padding("input_ids", 4), "pack 9: token 15: padding of id 4; expected 3, the pad id"),
    ("padding", on_padding("labels", 3), "pack 9: token 15: padding that carries loss"),
    ("padding", on_padding("doc_offsets", 5), "pack 9: segment 3: padding of offset 5; expected 0"),
    ("positions", on_padding("position_ids", 0), "pack 9: token 15: position 0; expected 6"),
    ("sums", pad_is_cut, "pack 9: 15 tokens; expected exactly 16"),
]


@pytest.mark.parametrize("agreeing", [False, True], ids=["as_it_is", "manifest_agrees"])
@pytest.mark.parametrize(("name", "change", "detail"), PADDING_DAMAGE)
def test_padding_is_one_masked_segment_at_the_end(
    tmp_path: Path, name: str, change: Callable[[Columns], None], detail: str, agreeing: bool
) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample(pad=True))
    change_shards(folder, change, shard=1)
    if agreeing:
        remake(folder)
    report = verify(folder)
    assert detail in check_of(report, name).detail
    assert name in faulty(report)


# -- the shards' shape ---------------------------------------------------------------------------------------


def rewritten(change: Callable[[pa.Table], pa.Table], **options: Any) -> Damage:
    """Write the first shard's table anew after ``change``, its metadata kept."""

    def damage(folder: Path) -> None:
        path = folder / FIRST_SHARD
        with pq.ParquetFile(path) as file:
            table, metadata = file.read(), file.metadata.metadata
        kept = {key: value for key, value in metadata.items() if key.startswith(b"packtool.")}
        pq.write_table(change(table).replace_schema_metadata(kept), path, **options)

    return damage


def with_column(name: str, change: Callable[[list[Any]], list[Any]], kind: Any = None) -> Damage:
    def changed(table: pa.Table) -> pa.Table:
        values = pa.array(change(table.column(name).to_pylist()), kind or SCHEMA.field(name).type)
        return table.set_column(SCHEMA.get_field_index(name), name, values)

    return rewritten(changed)


SCHEMA_DAMAGE: list[tuple[Damage, str]] = [
    (rewritten(lambda table: table.drop_columns(["doc_offsets"])), "columns are"),
    (rewritten(lambda table: table.rename_columns([*SCHEMA.names[:-1], "offsets"])), "columns are"),
    (rewritten(lambda table: table.append_column("more", table.column("doc_ids"))), "columns are"),
    (with_column("labels", list, pa.list_(pa.int64())), "column labels is list<"),
    (with_column("doc_ids", lambda rows: [row[0] for row in rows], pa.int64()), "column doc_ids is int64"),
    (with_column("labels", lambda rows: [None, *rows[1:]]), "column labels holds a null"),
    (with_column("labels", lambda rows: [[None, *rows[0][1:]], *rows[1:]]), "column labels holds a null"),
    (with_column("position_ids", lambda rows: [rows[0], rows[1][:-1], *rows[2:]]), "pack 1: position_ids has 15"),
    (with_column("doc_offsets", lambda rows: [*rows[:3], [*rows[3], 0], *rows[4:]]), "pack 3: doc_offsets has 3"),
    (lambda folder: cut_short(folder / FIRST_SHARD), "not a readable shard"),
    (lambda folder: overwrite_pages(folder / FIRST_SHARD), FIRST_SHARD),
]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def overwrite_pages(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4:200] = bytes(196)
    path.write_bytes(raw)


@pytest.mark.parametrize("agreeing", [False, True], ids=["as_it_is", "manifest_agrees"])
@pytest.mark.parametrize(("damage", "detail"), SCHEMA_DAMAGE)
def test_a_shard_of_another_shape_fails_the_schema_and_the_rest_is_not_checked(
    tmp_path: Path, damage: Damage, detail: str, agreeing: bool
) -> None:
    folder = tmp_path / "ds"
    manifest = make_dataset(folder, sample())
    damage(folder)
    if agreeing:
        remake(folder)
    report = verify(folder)
    assert detail in check_of(report, "schema").detail
    assert check_of(report, "schema").faults == 1
    for name in OF_PACKS - {"conservation"}:
        check = check_of(report, name)
        assert (check.ok, check.faults) == (False, 0)
        assert check.detail.startswith("not checked: ")
        assert FIRST_SHARD in check.detail
    assert not check_of(report, "conservation").ok
    # The second shard was looked at all the same.
    assert check_of(report, "positions").checked == manifest.shards[1].tokens


def test_a_row_group_of_too_many_packs_is_found(tmp_path: Path) -> None:
    # Packs of 16 may be 16,384 in a row group; at max_length 2^20 it is one.
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    change_manifest(folder, lambda values: values.update(max_length=2**20))
    check = check_of(verify(folder), "schema")
    assert check.detail == f"{FIRST_SHARD}: row group 0: 5 packs; expected 1 to 1"
    assert check.faults == 2


def test_a_fault_in_a_later_shard_is_named_by_the_packs_number_in_the_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())

    def change(columns: Columns) -> None:
        columns["position_ids"][20] += 1

    change_shards(folder, change, shard=1)
    check = check_of(verify(folder), "positions")
    assert check.detail == "train-00001-of-00002.parquet: pack 6: token 4: position 5; expected 4"
    # The token after it is no longer one more than the one before.
    assert check.faults == 2


def test_packs_beside_a_pack_whose_lengths_do_not_fit_are_still_checked(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())

    def change(columns: Columns) -> None:
        columns["seq_lengths"][0] = 9  # pack 0 is out
        columns["position_ids"][31] = 99  # pack 1 is wrong in another way

    change_shards(folder, change)
    report = verify(folder)
    assert check_of(report, "positions").detail == f"{FIRST_SHARD}: pack 1: token 15: position 99; expected 15"
    assert check_of(report, "segment_starts").detail.startswith("not checked: ")
    assert check_of(report, "segment_starts").faults == 0
    assert check_of(report, "vocabulary").ok


# -- the files -----------------------------------------------------------------------------------------------


def linked(name: str) -> Damage:
    def damage(folder: Path) -> None:
        elsewhere = folder.parent / "elsewhere"
        (folder / name).rename(elsewhere)
        (folder / name).symlink_to(elsewhere)

    return damage


def one_letter_changed(path: Path) -> None:
    path.write_text(path.read_text().replace("Packed dataset", "packed dataset"))


def replaced_by_a_pipe(folder: Path) -> None:
    (folder / "README.md").unlink()
    os.mkfifo(folder / "README.md")


def in_manifest(change: Callable[[dict[str, Any]], None]) -> Damage:
    return lambda folder: change_manifest(folder, change)


def without_rejects(values: dict[str, Any]) -> None:
    values["files"] = [entry for entry in values["files"] if entry["name"] != "rejects.jsonl"]


def shards_in_another_order(values: dict[str, Any]) -> None:
    values["shards"].reverse()


def content_digest_of_a_shard(values: dict[str, Any]) -> None:
    values["shards"][0]["content_digest"] = "1" * 64


FILE_DAMAGE: list[tuple[Damage, str]] = [
    (lambda folder: (folder / "README.md").unlink(), "README.md: listed in the manifest, but cannot be found"),
    (lambda folder: (folder / FIRST_SHARD).unlink(), f"{FIRST_SHARD}: listed in the manifest, but cannot be found"),
    (lambda folder: (folder / "rejects.jsonl").unlink(), "rejects.jsonl: listed in the manifest"),
    (lambda folder: shutil.rmtree(folder / "tokenizer"), "tokenizer.json: listed in the manifest"),
    (lambda folder: one_letter_changed(folder / "README.md"), "its sha256 is not"),
    (lambda folder: (folder / "README.md").write_text("Short.\n"), "README.md: 7 bytes; the manifest says"),
    (linked("README.md"), "README.md: a link"),
    (linked(FIRST_SHARD), f"{FIRST_SHARD}: a link"),
    (linked("tokenizer"), "tokenizer: a link"),
    (linked(MANIFEST_NAME), "manifest.json: a link"),
    (replaced_by_a_pipe, "README.md: not a regular file"),
    (in_manifest(lambda values: values.update(content_digest="1" * 64)), "content_digest is not"),
    (in_manifest(content_digest_of_a_shard), "content_digest is not"),
    (in_manifest(without_rejects), "rejects.jsonl is not listed"),
    (in_manifest(shards_in_another_order), "shard 0 is called train-00001-of-00002.parquet"),
    (in_manifest(lambda values: values["shards"].pop()), "shard 0 is called train-00000-of-00002.parquet"),
]


@pytest.mark.parametrize(("damage", "detail"), FILE_DAMAGE)
def test_files_that_are_not_the_manifests_are_found(tmp_path: Path, damage: Damage, detail: str) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    damage(folder)
    report = verify(folder)
    assert not sound(report)
    assert detail in check_of(report, "manifest_files").detail


@pytest.mark.parametrize("damage", [linked("README.md"), linked("tokenizer"), linked(FIRST_SHARD)])
def test_a_link_is_refused_though_its_target_agrees_with_the_manifest(tmp_path: Path, damage: Damage) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    damage(folder)
    remake(folder)
    assert "a link" in check_of(verify(folder), "manifest_files").detail


# -- rejects -------------------------------------------------------------------------------------------------


def with_row(doc_id: int, /, **changes: Any) -> Callable[[list[Reject]], list[Reject]]:
    """The first row of a document with other values."""

    def change(rows: list[Reject]) -> list[Reject]:
        at = next(index for index, row in enumerate(rows) if row.doc_id == doc_id)
        return [*rows[:at], replace(rows[at], **changes), *rows[at + 1 :]]

    return change


REJECT_DAMAGE: list[tuple[str, Callable[[list[Reject]], list[Reject]], str]] = [
    ("documents", lambda rows: rows[::-1], "rejects.jsonl:2: out of order"),
    ("documents", lambda rows: [rows[0], *rows], "rejects.jsonl:2: out of order, or listed twice"),
    ("documents", with_row(1, reason="no_such_reason"), "rejects.jsonl:1: unknown reason 'no_such_reason'"),
    ("documents", with_row(1, line=3), "rejects.jsonl:1: doc_id 1 is line 2 of 'a.jsonl', not 3 of 'a.jsonl'"),
    ("documents", with_row(1, source="c.jsonl"), "doc_id 1 is line 2 of 'a.jsonl', not 2 of 'c.jsonl'"),
    ("documents", with_row(63, doc_id=100), "doc_id 100 belongs to no source"),
    ("documents", with_row(9, tokens=4), "4 tokens, but the reason bad_json is given before there are any"),
    ("documents", with_row(9, offset=4), "no tokens, but offset 4"),
    ("documents", with_row(7, tokens=0), "no tokens, but offset 0"),
    ("documents", lambda rows: [*rows, replace(rows[-1], offset=1)], "no tokens, but offset 1"),
    ("conservation", lambda rows: rows[1:], "source 'a.jsonl': records"),
    ("conservation", lambda rows: [row for row in rows if row.doc_id != 7], "source 'a.jsonl': documents"),
    ("conservation", with_row(7, tokens=29), "source 'a.jsonl': tokens"),
    ("conservation", with_row(7, checksum=1), "source 'a.jsonl': checksum"),
    ("conservation", with_row(7, reason="nothing_to_train"), "rejected['nothing_to_train'] is 4; found 5"),
    ("conservation", with_row(1, reason="bad_json"), "bad_records is 2; found 3"),
]


@pytest.mark.parametrize("agreeing", [False, True], ids=["as_it_is", "manifest_agrees"])
@pytest.mark.parametrize(("name", "change", "detail"), REJECT_DAMAGE)
def test_damaged_rejects_are_found(
    tmp_path: Path, name: str, change: Callable[[list[Reject]], list[Reject]], detail: str, agreeing: bool
) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    with_rows(folder, change)
    if agreeing:
        remake(folder)
    report = verify(folder)
    assert detail in check_of(report, name).detail
    assert name in faulty(report)


def test_overlapping_rejects_of_one_document_are_found(tmp_path: Path) -> None:
    recipe = sample()
    held = document(70, 10)
    cuts = [(Stretch(held, 0, 6), "nothing_to_train"), (Stretch(held, 6, 10), "nothing_to_train")]
    folder = tmp_path / "ds"
    make_dataset(folder, replace(recipe, cuts=[*recipe.cuts, *cuts]))
    assert sound(verify(folder))
    with_rows(folder, with_row(70, tokens=7))
    remake(folder)
    assert "overlaps the row before it, of the same document 70" in check_of(verify(folder), "documents").detail


def test_rejects_that_cannot_be_read_leave_conservation_unchecked(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    path = folder / "rejects.jsonl"
    path.write_text(path.read_text() + "{\n")
    report = verify(folder)
    assert "rejects.jsonl:11: not JSON" in check_of(report, "documents").detail
    assert check_of(report, "conservation").detail.startswith("not checked: ")
    assert check_of(report, "positions").ok


# -- the manifest's numbers ----------------------------------------------------------------------------------

NUMBERS = [
    ("sources", 0, "documents"),
    ("sources", 0, "tokens"),
    ("sources", 2, "checksum"),
    ("sources", 2, "records"),
    ("shards", 1, "packs"),
    ("shards", 1, "tokens"),
    ("shards", 0, "trained_tokens"),
    ("records",),
    ("bad_records",),
    ("documents", "into"),
    ("documents", "out"),
    ("documents", "left_out"),
    ("documents", "truncated"),
    ("tokens", "into"),
    ("tokens", "out"),
    ("tokens", "left_out"),
    ("tokens", "truncated"),
    ("tokens", "trained"),
    ("rejected", "overlong"),
    ("rejected", "bad_utf8"),
    ("rejected_tokens", "overlong"),
    ("packs",),
    ("lower_bound_packs",),
    ("segments",),
    ("max_segments",),
    ("longest_segment",),
    ("segment_lengths", "counts", 0),
    ("segment_lengths", "lengths", -1),
    ("document_lengths", "counts", 0),
    ("document_lengths", "lengths", -1),
]


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
def test_every_number_of_the_manifest_is_recomputed(tmp_path: Path, path: tuple[Any, ...]) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())

    def change(values: dict[str, Any]) -> None:
        place: Any = values
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = (place[path[-1]] if not isinstance(place, dict) or path[-1] in place else 0) + 1

    change_manifest(folder, change)
    report = verify(folder)
    assert "conservation" in faulty(report)


@pytest.mark.parametrize("key", ["pack_tokens", "pack_squares", "pack_segments"])
def test_the_sums_in_a_shards_metadata_are_recomputed(tmp_path: Path, key: str) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    path = folder / FIRST_SHARD
    with pq.ParquetFile(path) as file:
        table, metadata = file.read(), file.metadata.metadata
    kept = {name: value for name, value in metadata.items() if name.startswith(b"packtool.")}
    sums = json.loads(kept[b"packtool." + key.encode()])
    sums[2] += 1
    kept[b"packtool." + key.encode()] = json.dumps(sums).encode()
    pq.write_table(table.replace_schema_metadata(kept), path)
    remake(folder)
    report = verify(folder)
    assert faulty(report) == {"conservation"}
    detail = f"{FIRST_SHARD}: pack 2: {key} is {sums[2]} in the shard's metadata; found {sums[2] - 1}"
    assert check_of(report, "conservation").detail == detail


def test_missing_sums_in_a_shards_metadata_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    path = folder / FIRST_SHARD
    with pq.ParquetFile(path) as file:
        table = file.read()
    pq.write_table(table.replace_schema_metadata(None), path)
    remake(folder)
    report = verify(folder)
    assert faulty(report) == {"conservation"}
    assert "packtool.pack_tokens is missing or damaged" in check_of(report, "conservation").detail


def test_a_manifest_that_contradicts_itself_makes_an_unsound_dataset(tmp_path: Path) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    change_manifest(folder, lambda values: values["sources"][0].update(rows=41))
    report = verify(folder)
    assert not sound(report)
    assert "'b.jsonl' begins at 40; the rows before it end at 41" in check_of(report, "manifest_files").detail


# -- the report itself ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda _: None, Path.mkdir, Path.touch], ids=["nothing", "empty", "a_file"])
def test_what_is_no_dataset_is_an_error_and_no_report(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "ds")
    with pytest.raises(BadData, match=r"not a packed dataset|cannot be read"):
        verify(tmp_path / "ds")


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / MANIFEST_NAME).write_text("{"),
        in_manifest(lambda values: values.pop("packs")),
        in_manifest(lambda values: values["shards"][0].update(name="../train-00000-of-00001.parquet")),
        in_manifest(lambda values: values["files"][0].update(name="/etc/passwd")),
        in_manifest(lambda values: values.update(format_version=2)),
    ],
)
def test_a_manifest_that_cannot_be_trusted_fails_and_nothing_else_is_looked_at(tmp_path: Path, damage: Damage) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    damage(folder)
    report = verify(folder)
    assert faulty(report) == {"manifest_files"}
    assert all(not check.ok for check in report.checks)
    assert {check.detail for check in report.checks[1:]} == {"not checked: the manifest cannot be used"}


def test_progress_rises_to_the_number_of_packs(tmp_path: Path) -> None:
    make_dataset(tmp_path / "ds", sample())
    heard = Heard([])
    verify(tmp_path / "ds", on_event=heard)
    told = [(event.done, event.total, event.unit) for event in heard.events if isinstance(event, Progress)]
    assert told == [(0, 10, "packs"), (5, 10, "packs"), (10, 10, "packs")]


def test_the_report_as_json_has_every_check_by_name(tmp_path: Path) -> None:
    make_dataset(tmp_path / "ds", sample())
    values = json.loads(json.dumps(verify(tmp_path / "ds").to_json()))
    assert values["ok"] is False
    assert [check["name"] for check in values["checks"]] == MADE
    assert set(values["checks"][0]) == {"name", "ok", "checked", "faults", "detail"}


# -- any dataset, any single change --------------------------------------------------------------------------


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Documents of any length and mask, cut into pieces of any length, pieces in any pack or left out."""
    max_length = draw(st.integers(2, 12))
    pieces: list[Stretch] = []
    cuts: list[tuple[Stretch, str]] = []
    doc_ids = draw(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True))
    for doc_id in doc_ids:
        length = draw(st.integers(2, 30))
        whole = Document(
            doc_id, document(doc_id, length).ids, draw(st.lists(st.booleans(), min_size=length, max_size=length))
        )
        start = 0
        while start < length:
            stop = min(length, start + draw(st.integers(1, max_length)))
            piece = Stretch(whole, start, stop)
            if any(whole.trained[start + 1 : stop]) and draw(st.integers(0, 3)):
                pieces.append(piece)
            else:
                cuts.append((piece, "nothing_to_train"))
            start = stop
    ready = Document(100 - 1 - next(i for i in range(100) if 99 - i not in doc_ids), [20, 21], [False, True])
    pieces = draw(st.permutations([*pieces, Stretch(ready, 0, 2)]))
    packs: list[list[Stretch]] = [[]]
    for piece in pieces:
        if sum(each.stop - each.start for each in packs[-1]) + piece.stop - piece.start > max_length:
            packs.append([])
        packs[-1].append(piece)
    return Recipe(max_length, packs, cuts, [], draw(st.booleans()), draw(st.integers(1, 4)))


@given(recipes())
def test_every_sound_dataset_passes(recipe: Recipe) -> None:
    with tempfile.TemporaryDirectory() as name:
        make_dataset(Path(name) / "ds", recipe)
        report = verify(Path(name) / "ds")
        assert sound(report), report


@given(recipes(), st.data())
def test_one_changed_value_anywhere_is_found_though_hashes_agree(recipe: Recipe, data: st.DataObject) -> None:
    column = data.draw(st.sampled_from(SCHEMA.names))
    delta = data.draw(st.integers(-200, 200).filter(bool))

    def change(columns: Columns) -> None:
        index = data.draw(st.integers(0, len(columns[column]) - 1))
        columns[column][index] += delta

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ds"
        make_dataset(folder, recipe)
        change_shards(folder, change)
        remake(folder)
        report = verify(folder)
        assert check_of(report, "manifest_files").ok
        assert not sound(report)
