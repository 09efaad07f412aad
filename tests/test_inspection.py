"""What ``show`` gives is what stands in the shards, found with as little reading as it takes."""

import json
import re
import shutil
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool import BadData, Misuse, inspection
from packtool.contract import IGNORED
from packtool.inspection import ShownSegment, show
from packtool.manifest import read_manifest
from packtool.tokenizer import find_tokenizer, load
from packtool.views import lines
from packtool.views.html import page
from packtool.views.page import Page

from . import runs, tokenizer_builder
from .dataset_builder import VOCABULARY, change_manifest, change_shards, make_dataset, sample, with_rows

ROOT = Path(__file__).parent.parent


def made(folder: Path, pad: bool = False) -> Path:
    """The hand-made dataset, with a tokenizer whose token n is the word ``tn``."""
    make_dataset(folder, sample(pad))
    words = [f"t{n}" for n in range(VOCABULARY - len(tokenizer_builder.SPECIALS) - 1)]
    tokenizer_builder.save(tokenizer_builder.words(*words), folder / "tokenizer")
    return folder


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return made(tmp_path / "made")


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Conversations of the sample data in several shards of several row groups."""
    with pytest.MonkeyPatch.context() as patch:
        runs.small_row_groups(patch, 3_000)
        out = tmp_path_factory.mktemp("chats") / "out"
        runs.run(
            ROOT / "sample_data" / "chat.jsonl", out, max_length=1024, shards=3, pad=True, overlong="truncate_turns"
        )
    return out


# --- what is shown ---------------------------------------------------------------------------------------------


def test_another_tokenizer_is_told_of_in_every_view(chats: Path, tmp_path: Path) -> None:
    assert show(chats).faults == ()
    folder = tmp_path / "out"
    shutil.copytree(chats, folder)
    config = json.loads((folder / "tokenizer" / "tokenizer.json").read_text())
    vocabulary = config["model"]["vocab"]
    first, second = (name for name, id in vocabulary.items() if id in (300, 301))
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps(config))
    found = show(folder)
    (fault,) = found.faults
    assert "tokenizer is not the tokenizer that was used" in fault
    assert found.to_json()["faults"] == [fault]
    for tokens, mask in ((False, False), (True, False), (False, True)):
        told = " ".join(line.plain for line in lines(found, Page(80), tokens=tokens, mask=mask))
        assert told.count(f"WRONG: {folder}") == 1
    assert page(found).count(f"WRONG: {folder}") == 1


@pytest.mark.parametrize("pad", [False, True])
def test_every_pack_is_shown_as_it_was_made(tmp_path: Path, pad: bool) -> None:
    folder = made(tmp_path / "made", pad)
    recipe = sample(pad)
    for number, stretches in enumerate(recipe.packs):
        (pack,) = show(folder, pack=number).shown
        assert (pack.number, pack.row) == (number, number % recipe.packs_per_shard)
        segments = [segment for segment in pack.segments if not segment.is_padding]
        start = 0
        for segment, stretch in zip(segments, stretches, strict=True):
            document = stretch.document
            assert (segment.doc_id, segment.doc_offset) == (document.doc_id, stretch.start)
            expected = ("a.jsonl", document.doc_id + 1) if document.doc_id < 40 else ("c.jsonl", document.doc_id - 39)
            assert (segment.source, segment.line) == expected
            assert segment.start == start
            assert segment.input_ids.tolist() == document.ids[stretch.start : stretch.stop]
            trained = [index > 0 and document.trained[stretch.start + index] for index in range(segment.length)]
            assert (segment.labels != IGNORED).tolist() == trained
            assert [run.trained for run in segment.runs for _ in range(run.start, run.stop)] == trained
            assert segment.position_ids.tolist() == list(range(segment.length))
            assert segment.faults == ()
            start += segment.length
        assert pack.tokens == start
        assert pack.padding == (recipe.max_length - start if pad else 0)


def test_runs_are_maximal_and_hold_the_segments_text(chats: Path) -> None:
    tokenizer = load(find_tokenizer(str(chats / "tokenizer")))
    for pack in show(chats, random=5).shown:
        for segment in pack.segments:
            assert [run.start for run in segment.runs[1:]] == [run.stop for run in segment.runs[:-1]]
            assert all(a.trained != b.trained for a, b in pairwise(segment.runs))
            assert (segment.runs[0].start, segment.runs[-1].stop) == (0, segment.length)
            whole = tokenizer.decode(segment.input_ids.tolist(), skip_special_tokens=False)
            if "\ufffd" not in whole and "\\x" not in "".join(run.text for run in segment.runs):
                assert "".join(run.text for run in segment.runs) == whole


def test_packs_of_all_shards_are_found_by_their_number(chats: Path) -> None:
    rows = runs.rows(chats)
    found = show(chats, random=len(rows)).shown
    assert [pack.number for pack in found] == list(range(len(rows)))
    for pack, row in zip(found, rows, strict=True):
        assert [segment.doc_id for segment in pack.segments] == row["doc_ids"]
        assert [id for segment in pack.segments for id in segment.input_ids.tolist()] == row["input_ids"]
        assert [label for segment in pack.segments for label in segment.labels.tolist()] == row["labels"]


def test_only_the_row_group_of_a_pack_is_read(chats: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    original = inspection.read_row_group

    def counted(path: Path, file: Any, group: int, first: int) -> Any:
        read.append(group)
        return original(path, file, group, first)

    monkeypatch.setattr(inspection, "read_row_group", counted)
    show(chats, pack=read_manifest(chats).packs - 1)
    assert len(read) == 1
    assert read[0] > 0


def test_json_has_plain_values_under_the_documented_keys(chats: Path) -> None:
    documented = set(re.findall(r"\w+", (ROOT / "docs" / "cli.md").read_text().split("`packtool show --json`")[1]))
    values = show(chats).to_json(tokens=True)
    assert json.loads(json.dumps(values)) == values
    segment = values["shown"][0]["segments"][0]
    for keys in (values, values["shown"][0], segment, segment["runs"][0], segment["tokens"][0]):
        assert set(keys) <= documented
    assert len(segment["tokens"]) == segment["length"]
    assert "tokens" not in show(chats).to_json()["shown"][0]["segments"][0]


# --- which packs -----------------------------------------------------------------------------------------------


def test_the_first_pack_is_shown_unless_another_is_asked_for(dataset: Path) -> None:
    assert [pack.number for pack in show(dataset).shown] == [0]
    assert [pack.number for pack in show(dataset, pack=7).shown] == [7]


@given(packs=st.integers(1, 2**62), count=st.integers(1, 40), seed=st.integers(-5, 2**70))
def test_draws_are_different_packs_that_depend_on_the_seed_alone(packs: int, count: int, seed: int) -> None:
    count = min(count, packs)
    drawn = inspection._drawn(Path("out"), packs, count, seed)
    assert len(set(drawn)) == count
    assert drawn == sorted(drawn)
    assert drawn[0] >= 0
    assert drawn[-1] < packs
    assert drawn == inspection._drawn(Path("out"), packs, count, seed)
    assert set(inspection._drawn(Path("out"), packs, max(1, count - 1), seed)) <= set(drawn)


def test_seeds_draw_differently() -> None:
    assert len({tuple(inspection._drawn(Path("out"), 10_000, 3, seed)) for seed in range(50)}) == 50


def test_a_document_is_shown_with_all_its_pieces(dataset: Path) -> None:
    found = show(dataset, doc=41)
    assert [pack.number for pack in found.shown] == [1, 3, 6]
    pieces = [segment for pack in found.shown for segment in pack.segments if segment.doc_id == 41]
    assert sorted((piece.doc_offset, piece.length) for piece in pieces) == [(0, 16), (16, 16), (32, 8)]


def test_every_document_of_a_dataset_is_found_where_it_is(chats: Path) -> None:
    rows = runs.rows(chats)
    for doc in {row["doc_ids"][-2] for row in rows[::9]}:
        expected = [number for number, row in enumerate(rows) if doc in row["doc_ids"]]
        assert [pack.number for pack in show(chats, doc=doc).shown] == expected


@pytest.mark.parametrize(
    ("doc", "told"),
    [
        (7, "a.jsonl:8) is in no pack: rejects.jsonl says overlong"),
        (20, "a.jsonl:21) is in no pack: rejects.jsonl does not"),
    ],
)
def test_a_document_that_is_in_no_pack_is_told_with_its_reason(dataset: Path, doc: int, told: str) -> None:
    with pytest.raises(BadData, match="is in no pack") as error:
        show(dataset, doc=doc)
    assert told in str(error.value)


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"pack": 10}, "has 10 packs, 0 to 9"),
        ({"pack": -1}, "has 10 packs, 0 to 9"),
        ({"random": 11}, "has 10 packs; ask for 1 to 10"),
        ({"random": 0}, "has 10 packs; ask for 1 to 10"),
        ({"doc": 100}, "have 100 rows, so ids are 0 to 99"),
        ({"doc": -1}, "have 100 rows, so ids are 0 to 99"),
        ({"pack": 1, "doc": 1}, "only one of"),
    ],
)
def test_what_the_dataset_does_not_have_is_misuse(dataset: Path, asked: dict[str, int], told: str) -> None:
    with pytest.raises(Misuse) as error:
        show(dataset, **asked)
    assert told in str(error.value)


# --- damage ----------------------------------------------------------------------------------------------------

Columns = dict[str, list[int]]


def set_to(name: str, index: int, value: int) -> Callable[[Columns], None]:
    def change(columns: Columns) -> None:
        columns[name][index] = value

    return change


@pytest.mark.parametrize(
    ("change", "segment", "told"),
    [
        (set_to("position_ids", 12, 12), 1, "token 2 has position 12, not 2"),
        (set_to("labels", 10, 30), 1, "its first token trains"),
        (set_to("labels", 3, 499), 0, "but its label 499"),
        (set_to("input_ids", 15, 700), 1, "token 5 is 700, which is not in the vocabulary"),
        (set_to("doc_ids", 1, 5_000), 1, "doc id 5000 belongs to no source"),
    ],
)
def test_what_is_wrong_with_a_segment_is_shown_with_it(
    dataset: Path, change: Callable[[Columns], None], segment: int, told: str
) -> None:
    change_shards(dataset, change)
    faulty: ShownSegment = show(dataset).shown[0].segments[segment]
    assert any(told in fault for fault in faulty.faults), faulty.faults
    assert not show(dataset).shown[0].segments[1 - segment].faults


@pytest.mark.parametrize("lengths", [{0: 9}, {0: 0, 1: 16}, {0: 17, 1: -1}])
def test_segments_that_do_not_fit_their_pack_are_refused(dataset: Path, lengths: dict[int, int]) -> None:
    def change(columns: Columns) -> None:
        for index, length in lengths.items():
            columns["seq_lengths"][index] = length

    change_shards(dataset, change)
    with pytest.raises(BadData, match="pack 0: its seq_lengths do not add up"):
        show(dataset)
    assert show(dataset, pack=1).shown


def break_file(name: str, content: bytes | None) -> Callable[[Path], None]:
    def broken(folder: Path) -> None:
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)

    return broken


def link_away(folder: Path) -> None:
    path = folder / "tokenizer" / "tokenizer.json"
    path.rename(folder.parent / "elsewhere.json")
    path.symlink_to(folder.parent / "elsewhere.json")


@pytest.mark.parametrize(
    ("damage", "asked", "told"),
    [
        (break_file("manifest.json", None), {}, "not a packed dataset"),
        (break_file("manifest.json", b"{"), {}, "manifest.json: not JSON"),
        (break_file("train-00000-of-00002.parquet", None), {}, "cannot be found"),
        (break_file("train-00000-of-00002.parquet", b"PAR1"), {}, "not a readable shard"),
        (break_file("train-00001-of-00002.parquet", b"PAR1"), {"doc": 99}, "not a readable shard"),
        (break_file("tokenizer/tokenizer.json", None), {}, "cannot be found"),
        (break_file("tokenizer/tokenizer.json", b"{}"), {}, "not a tokenizer"),
        (break_file("rejects.jsonl", b"?"), {"doc": 20}, "rejects.jsonl:1"),
        (link_away, {}, "a link"),
        (lambda folder: change_manifest(folder, lambda m: m["shards"][0].update(packs=4)), {}, "the manifest says 4"),
        (lambda folder: change_manifest(folder, lambda m: m.update(packs=2**62)), {"pack": 2**61}, "is in no shard"),
        (lambda folder: with_rows(folder, lambda _: []), {"doc": 7}, "does not list it"),
    ],
)
def test_a_damaged_dataset_is_an_error_of_one_line(
    dataset: Path, damage: Callable[[Path], None], asked: dict[str, int], told: str
) -> None:
    damage(dataset)
    with pytest.raises(BadData) as error:
        show(dataset, **asked)
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_shard_that_is_not_asked_for_is_not_opened(dataset: Path) -> None:
    (dataset / "train-00001-of-00002.parquet").unlink()
    assert show(dataset, pack=4).shown
    with pytest.raises(BadData):
        show(dataset, pack=5)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound dataset whose first shard may be overwritten."""
    return made(tmp_path_factory.mktemp("sound") / "made")


@given(flips=st.lists(st.tuples(st.integers(0, 2**32), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_give_packs_or_one_line(sound: Path, flips: list[tuple[int, int]]) -> None:
    path = sound / "train-00000-of-00002.parquet"
    whole = path.read_bytes()
    raw = bytearray(whole)
    for place, mask in flips:
        raw[place % len(raw)] ^= mask
    path.write_bytes(raw)
    told = ""
    try:
        show(sound, random=10)
    except BadData as error:
        told = str(error)
    finally:
        path.write_bytes(whole)
    assert "\n" not in told
