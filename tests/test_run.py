"""Whole runs through Python: against a slow reference, against themselves, and against what can go wrong."""

import gzip
import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import BAD_RECORD_REASONS, BadData, Misuse
from packtool.progress import Notice, Progress, Stage
from packtool.run import pack
from packtool.verification import verify
from tests import reference_pack, runs

EOS = 0  # <|endoftext|> of the sample tokenizer
OVERLONG = {
    "bfd": ["drop", "truncate"],
    "bfd_split": ["split"],
    "wrapped": ["split"],
    "in_order": ["drop", "truncate", "split"],
}


# --- against the reference -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    documents: list[dict[str, Any]]
    strategy: str
    overlong: str
    max_length: int
    max_segments: int | None
    pad: bool
    group_tokens: int
    shard_tokens: int
    unit_bytes: int
    row_group_tokens: int
    sources: int

    def options(self) -> dict[str, Any]:
        return {
            "strategy": self.strategy,
            "overlong": self.overlong,
            "max_length": self.max_length,
            "max_segments": self.max_segments,
            "pad": self.pad,
            "group_tokens": self.group_tokens,
            "shard_tokens": self.shard_tokens,
        }


@st.composite
def cases(draw: st.DrawFn) -> Case:
    max_length = draw(st.integers(2, 24))
    ids = st.lists(st.integers(1, 500), max_size=3 * max_length)
    masked = draw(st.booleans())
    marks = st.sampled_from(["all", "none", "first", "last", "some"])

    def document(ids: list[int], kind: str, some: list[bool]) -> dict[str, Any]:
        if not masked:
            return {"ids": ids}
        trained = {
            "all": [True] * len(ids),
            "none": [False] * len(ids),
            "first": [index == 0 for index in range(len(ids))],
            "last": [index == len(ids) - 1 for index in range(len(ids))],
            "some": (some * (len(ids) + 1))[: len(ids)],
        }[kind]
        return {"ids": ids, "trained": trained}

    documents = draw(
        st.lists(st.builds(document, ids, marks, st.lists(st.booleans(), min_size=1, max_size=9)), max_size=25)
    )
    strategy = draw(st.sampled_from(sorted(OVERLONG)))
    return Case(
        documents=documents,
        strategy=strategy,
        overlong=draw(st.sampled_from(OVERLONG[strategy])),
        max_length=max_length,
        max_segments=draw(st.one_of(st.none(), st.integers(1, 4))),
        pad=draw(st.booleans()),
        group_tokens=draw(st.sampled_from([1, 7, 40, 100, 10**9])),
        shard_tokens=draw(st.sampled_from([1, 50, 10**9])),
        unit_bytes=draw(st.sampled_from([1, 64, 200, 10**6])),
        row_group_tokens=draw(st.sampled_from([1, 50, 10**6])),
        sources=draw(st.integers(1, 3)),
    )


def write_sources(folder: Path, records: list[dict[str, Any]], count: int) -> list[Path]:
    """The records in files, of which the first has the first ones."""
    share = -(-len(records) // count) if records else 0
    return [
        runs.write_jsonl(folder / f"{index}.jsonl", records[index * share : (index + 1) * share])
        for index in range(count)
    ]


@given(case=cases())
def test_a_run_without_shuffling_equals_the_slow_reference(case: Case) -> None:
    records = runs.token_records(case.documents)
    documents = reference_pack.documents_of_tokens(records)
    pad_id = 1 if case.pad else None  # <|pad|>
    expected = reference_pack.pack(
        documents,
        strategy=case.strategy,
        max_length=case.max_length,
        overlong=case.overlong,
        max_segments=case.max_segments,
        pad_id=pad_id,
        group_tokens=case.group_tokens,
    )
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        runs.small_units(patch, case.unit_bytes)
        runs.small_row_groups(patch, case.row_group_tokens)
        sources = write_sources(Path(name), records, case.sources)
        output = Path(name) / "out"
        made = runs.config(sources, output, format="tokens", shuffle=False, on_bad_record="skip", **case.options())
        if not expected.rows:
            with pytest.raises(BadData, match=r"nothing (left )?to pack"):
                pack(made)
            assert not (output / "manifest.json").exists()
            return
        manifest = pack(made)
        assert runs.rows(output) == expected.rows
        told = [
            (row["doc_id"], row["offset"], row["tokens"], row["checksum"], row["reason"])
            for row in runs.rejects(output)
            if row["reason"] != "empty"
        ]
        assert told == expected.rejects
        assert [row["doc_id"] for row in runs.rejects(output) if row["reason"] == "empty"] == [
            doc_id for doc_id, record in enumerate(records) if not record["input_ids"]
        ]
        report = verify(output)
        assert report.ok, report

    out = {(doc_id, offset): length for row in expected.rows for doc_id, offset, length in _real(row)}
    tokens_in = sum(len(document.ids) for document in documents)
    truncated = sum(tokens for _, _, tokens, _, reason in expected.rejects if reason == "truncated")
    assert manifest.records == len(records)
    assert manifest.documents.into == len(records)
    assert manifest.documents.out == len({doc_id for doc_id, _ in out})
    assert manifest.tokens.into == tokens_in
    assert manifest.tokens.out == sum(out.values())
    assert manifest.tokens.truncated == truncated
    assert manifest.tokens.into == manifest.tokens.out + manifest.tokens.left_out + manifest.tokens.truncated
    assert manifest.tokens.trained == sum(label != -100 for row in expected.rows for label in row["labels"])
    assert manifest.packs == len(expected.rows)
    assert manifest.max_segments == max(len(_real(row)) for row in expected.rows)
    assert manifest.lower_bound_packs <= manifest.packs
    assert sum(source.checksum for source in manifest.sources) % 2**64 == reference_pack.source_checksum(documents)


def _real(row: runs.Row) -> list[tuple[int, int, int]]:
    return [
        (doc_id, offset, length)
        for doc_id, offset, length in zip(row["doc_ids"], row["doc_offsets"], row["seq_lengths"], strict=True)
        if doc_id >= 0
    ]


@given(
    texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=60), min_size=1, max_size=12),
    max_length=st.integers(4, 40),
    with_prompts=st.booleans(),
)
def test_text_and_completions_equal_the_slow_reference(texts: list[str], max_length: int, with_prompts: bool) -> None:
    if with_prompts:
        halves = [len(text) // 2 for text in texts]
        records = [{"prompt": text[:half], "completion": text[half:]} for text, half in zip(texts, halves, strict=True)]
    else:
        records = [{"text": text} for text in texts]
    documents = reference_pack.documents_of_text(records, runs.TOKENIZER, EOS)
    expected = reference_pack.pack(documents, strategy="bfd_split", max_length=max_length, overlong="split")
    with tempfile.TemporaryDirectory() as name:
        source, output = runs.write_jsonl(Path(name) / "a.jsonl", records), Path(name) / "out"
        made = runs.config(source, output, strategy="bfd_split", max_length=max_length, shuffle=False)
        if not expected.rows:
            with pytest.raises(BadData, match="nothing left to pack"):
                pack(made)
            return
        pack(made)
        assert runs.rows(output) == expected.rows


# The table of the field's packers, with every token t written as the two tokens 2t and 2t + 1 and max_length doubled:
# a document of one token has nothing to train and would be left out before planning.
GOLDEN = [
    ("wrapped", 3, [[1, 2, 3], [4, 5, 6, 7], [8]], [[1, 2, 3], [4, 5, 6], [7, 8]], [[3], [3], [1, 1]]),
    ("bfd", 4, [[1, 2, 3], [4, 5, 6, 7], [8]], [[4, 5, 6, 7], [1, 2, 3, 8]], [[4], [3, 1]]),
    (
        "bfd",
        4,
        [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11], [12]],
        [[1, 2, 3, 4], [8, 9, 10, 11], [6, 7, 12]],
        [[4], [4], [2, 1]],
    ),
    (
        "bfd_split",
        4,
        [[1, 2, 3, 4, 5], [6, 7], [8, 9, 10, 11], [12]],
        [[1, 2, 3, 4], [8, 9, 10, 11], [6, 7, 5, 12]],
        [[4], [4], [2, 1, 1]],
    ),
    (
        "bfd_split",
        5,
        [[1, 2, 3, 4, 5], [6], [7, 8, 9, 10], [11, 12, 13]],
        [[1, 2, 3, 4, 5], [7, 8, 9, 10, 6], [11, 12, 13]],
        [[5], [4, 1], [3]],
    ),
    ("bfd_split", 4, [[1, 2], [], [3, 4, 5], [], [6]], [[3, 4, 5, 6], [1, 2]], [[3, 1], [2]]),
]
GOLDEN_LENGTHS = [
    (8, [7, 6, 5, 3, 2, 1], [[7, 1], [6, 2], [5, 3]]),
    (8, [5, 5, 5, 3, 2], [[5, 3], [5, 2], [5]]),
    (20, [12, 10, 9, 7, 1], [[12, 7], [10, 9, 1]]),
]


@pytest.mark.parametrize(("strategy", "max_length", "documents", "packs", "lengths"), GOLDEN)
def test_golden_packs(
    tmp_path: Path,
    strategy: str,
    max_length: int,
    documents: list[list[int]],
    packs: list[list[int]],
    lengths: list[list[int]],
) -> None:
    def doubled(tokens: list[int]) -> list[int]:
        return [half for token in tokens for half in (2 * token, 2 * token + 1)]

    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": doubled(document)} for document in documents])
    options = {"strategy": strategy, "overlong": "truncate"} if strategy == "bfd" else {"strategy": strategy}
    runs.run(source, tmp_path / "out", max_length=2 * max_length, shuffle=False, **options)
    made = runs.rows(tmp_path / "out")
    assert [row["input_ids"] for row in made] == [doubled(pack) for pack in packs]
    assert [row["seq_lengths"] for row in made] == [[2 * length for length in pack] for pack in lengths]


@pytest.mark.parametrize(("max_length", "lengths", "packs"), GOLDEN_LENGTHS)
def test_golden_lengths(tmp_path: Path, max_length: int, lengths: list[int], packs: list[list[int]]) -> None:
    records = [{"input_ids": [number + 1] * (2 * length)} for number, length in enumerate(lengths)]
    source = runs.write_jsonl(tmp_path / "a.jsonl", records)
    runs.run(source, tmp_path / "out", max_length=2 * max_length, strategy="bfd", shuffle=False)
    made = runs.rows(tmp_path / "out")
    assert [row["seq_lengths"] for row in made] == [[2 * length for length in pack] for pack in packs]
    firsts = [row["input_ids"][0] for row in made]
    assert firsts == sorted(firsts), "equal lengths are taken in input order"


def test_one_document_of_a_hundred_packs_and_many_tiny_ones(tmp_path: Path) -> None:
    records = [{"input_ids": [1 + index % 400 for index in range(3200)]}]
    records += [{"input_ids": [7] * (index % 3)} for index in range(90)]  # empty, of one token, of two
    source = runs.write_jsonl(tmp_path / "a.jsonl", records)
    for strategy in ("bfd_split", "wrapped"):
        output = tmp_path / strategy
        manifest = runs.run(source, output, strategy=strategy, max_length=32)
        assert verify(output).ok
        assert manifest.documents.out == 31
        assert manifest.rejected == {"empty": 30, "nothing_to_train": 30}
        giant = sorted(part for row in runs.rows(output) for part in runs.segments(row) if part[0] == 0)
        assert [id for _, _, ids in giant for id in ids] == records[0]["input_ids"]


# --- order ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """600 documents of tokens, short and long."""
    records = [{"input_ids": [1 + (n * 7 + i) % 499 for i in range(2 + n * n % 61)]} for n in range(600)]
    return runs.write_jsonl(tmp_path_factory.mktemp("mixed") / "a.jsonl", records)


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.parametrize("group_tokens", [None, 4000])
def test_shuffling_moves_documents_and_loses_none(
    tmp_path: Path, mixed: Path, strategy: str, group_tokens: int | None
) -> None:
    options = {"strategy": strategy, "max_length": 50, "group_tokens": group_tokens, "overlong": "auto"}
    made = {}
    for name, more in {"plain": {"shuffle": False}, "0": {}, "0 again": {"seed": 0}, "1": {"seed": 1}}.items():
        manifest = runs.run(mixed, tmp_path / name, **options, **more)
        assert verify(tmp_path / name).ok
        made[name] = (runs.rows(tmp_path / name), manifest)
    assert made["0"][0] == made["0 again"][0]
    orders = [[row["doc_ids"] for row in made[name][0]] for name in ("plain", "0", "1")]
    assert orders[0] != orders[1] != orders[2] != orders[0]

    def tokens(rows: list[runs.Row]) -> list[tuple[int, int, int]]:
        return sorted(
            (doc, o + i, id) for row in rows for doc, o, ids in runs.segments(row) for i, id in enumerate(ids)
        )

    assert tokens(made["plain"][0]) == tokens(made["0"][0]) == tokens(made["1"][0])
    if group_tokens is None:
        # Best fit sees lengths alone, and a stream has one short pack at most.
        assert made["plain"][1].packs == made["0"][1].packs == made["1"][1].packs


def test_shuffled_streams_list_what_trains_nothing_in_order(tmp_path: Path) -> None:
    # Long prompts: most packs of the stream train nothing, in whatever order they come.
    records = []
    for n in range(40):
        ids = [1 + (n * 7 + i) % 499 for i in range(30 + n % 50)]
        records.append({"input_ids": ids, "labels": [-100] * (len(ids) - 1) + ids[-1:]})
    source = runs.write_jsonl(tmp_path / "a.jsonl", records)
    manifest = runs.run(source, tmp_path / "out", max_length=8, strategy="wrapped", group_tokens=300)
    told = [(row["doc_id"], row["offset"]) for row in runs.rejects(tmp_path / "out")]
    assert len(told) > 100
    assert told == sorted(told)
    assert manifest.lower_bound_packs <= manifest.packs <= 80
    assert manifest.documents.out == 40
    assert verify(tmp_path / "out").ok


def test_shuffling_mixes_the_sources(tmp_path: Path) -> None:
    sources = [
        runs.write_jsonl(tmp_path / f"{name}.jsonl", [{"input_ids": [number] * 10} for _ in range(100)])
        for number, name in ((1, "a"), (2, "b"))
    ]
    for more in ({}, {"group_tokens": 500}):
        output = tmp_path / str(len(more))
        runs.run(sources, output, max_length=100, strategy="bfd", **more)
        kinds = [set(row["input_ids"]) for row in runs.rows(output)]
        assert kinds.count({1, 2}) > len(kinds) / 2


def test_in_order_keeps_the_order_and_refuses_to_shuffle(tmp_path: Path, mixed: Path) -> None:
    runs.run(mixed, tmp_path / "out", strategy="in_order", max_length=64, group_tokens=500)
    order = [doc_id for row in runs.rows(tmp_path / "out") for doc_id in row["doc_ids"]]
    assert order == list(range(600))
    with pytest.raises(Misuse, match="--shuffle does not go with --strategy in_order"):
        runs.run(mixed, tmp_path / "other", strategy="in_order", shuffle=True)


# --- shards --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 7, 30])
def test_shards_are_as_many_as_asked_for_and_hold_the_packs_in_plan_order(
    tmp_path: Path, mixed: Path, count: int
) -> None:
    runs.run(mixed, tmp_path / "one", max_length=64, shards=1, group_tokens=3000)
    manifest = runs.run(mixed, tmp_path / "many", max_length=64, shards=count, group_tokens=3000)
    assert len(manifest.shards) == len(runs.shards(tmp_path / "many")) == count
    assert runs.rows(tmp_path / "many") == runs.rows(tmp_path / "one")
    sizes = [shard.packs for shard in manifest.shards]
    row_group = max(1, manifest.packs // count)
    assert max(sizes) - min(sizes) <= row_group


def test_more_shards_than_packs_are_refused(tmp_path: Path, mixed: Path) -> None:
    with pytest.raises(BadData, match=r"--shards 20000: there are only \d+ packs"):
        runs.run(mixed, tmp_path / "out", max_length=64, shards=20000)
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_more_shards_than_names_are_refused(tmp_path: Path, mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("packtool.shard_set.MOST_SHARDS", 3)
    with pytest.raises(BadData, match="more than 3; raise --shard-tokens"):
        runs.run(mixed, tmp_path / "out", max_length=64, group_tokens=1000)


# --- equal bytes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["text", "tokens"])
def test_the_same_bytes_whatever_the_workers(
    tmp_path: Path, mixed: Path, sample_data: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sample_data / "text.jsonl" if kind == "text" else mixed
    runs.small_units(monkeypatch, 20_000)
    options = {"max_length": 128, "group_tokens": 30_000 if kind == "text" else 4_000}
    made = [
        runs.run(source, tmp_path / str(workers), workers=workers, **options) and runs.content(tmp_path / str(workers))
        for workers in (1, 2, 3)
    ]
    assert len(runs.shards(tmp_path / "1")) > 3
    assert made[0] == made[1] == made[2]


def test_a_second_run_in_one_process_knows_nothing_of_the_first(tmp_path: Path) -> None:
    for token in (5, 6):
        source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [token] * (10 + n)} for n in range(token)])
        runs.run(source, tmp_path / "out", max_length=32, overwrite=True)
        assert {id for row in runs.rows(tmp_path / "out") for id in row["input_ids"]} == {token}
    # pyarrow's threads let go of a file that was read here a moment after the read has ended.
    until = time.monotonic() + 10
    while (still := [path for path in _open_files() if str(tmp_path) in path]) and time.monotonic() < until:
        time.sleep(0.05)
    assert not still, "no file of the run is still open"


def _open_files() -> list[str]:
    found = []
    for path in Path("/proc/self/fd").iterdir():
        try:
            found.append(str(path.readlink()))
        except OSError:
            pass  # the handle that listed them
    return found


def test_a_cache_folder_is_used_again_and_changes_no_byte(tmp_path: Path, mixed: Path) -> None:
    cache = tmp_path / "cache"
    runs.run(mixed, tmp_path / "a", max_length=64, cache_dir=cache)
    heard = runs.Heard([])
    pack(runs.config(mixed, tmp_path / "b", max_length=32, strategy="wrapped", cache_dir=cache), heard)
    assert any("tokenized before" in text for text in heard.notices)
    runs.run(mixed, tmp_path / "c", max_length=32, strategy="wrapped")
    assert runs.content(tmp_path / "b") == runs.content(tmp_path / "c")


def test_sources_are_named_relative_so_that_a_moved_input_gives_the_same_bytes(tmp_path: Path, mixed: Path) -> None:
    made = []
    for name in ("here", "there"):
        (tmp_path / name / "in").mkdir(parents=True)
        sources = [tmp_path / name / "in" / f"{letter}.jsonl" for letter in "ab"]
        for source in sources:
            source.write_bytes(mixed.read_bytes())
        runs.run(sources, tmp_path / name / "out", max_length=64)
        made.append(runs.content(tmp_path / name / "out"))
    assert made[0] == made[1]


# --- limits --------------------------------------------------------------------------------------------------


def test_limit_takes_the_first_records_of_all_sources_blank_lines_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.small_units(monkeypatch, 40)
    lines = [b"", b'{"input_ids": [1, 2]}', b"   ", b'{"input_ids": [3, 4]}', b"not json", b'{"input_ids": [5, 6]}']
    sources = [runs.write_jsonl(tmp_path / name, lines) for name in ("a.jsonl", "b.jsonl")]
    for limit, ids, bad in ((1, [1], 0), (3, [1, 3], 1), (4, [1, 3, 5], 1), (6, [1, 3, 5, 1, 3], 1), (99, None, 2)):
        output = tmp_path / str(limit)
        manifest = runs.run(sources, output, limit=limit, on_bad_record="skip", max_length=4, shuffle=False)
        firsts = sorted((doc_id, part[0]) for row in runs.rows(output) for doc_id, _, part in runs.segments(row))
        assert [first for _, first in firsts] == (ids or [1, 3, 5, 1, 3, 5])
        assert manifest.records == min(limit, 8)
        assert manifest.bad_records == bad
        assert manifest.limited
        assert verify(output).ok


# --- bad records ---------------------------------------------------------------------------------------------


@pytest.fixture
def many_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Two sources of many units, with a bad record of another kind in several of them."""
    runs.small_units(monkeypatch, 500)
    sources = []
    for name, bad in (("a.jsonl", {150: b"{", 260: b'{"input_ids": 5}'}), ("b.jsonl", {3: b"[]", 40: b"\xff"})):
        lines = [bad.get(n, b'{"input_ids": [1, 2, 3]}') for n in range(300)]
        sources.append(runs.write_jsonl(tmp_path / name, lines))
    return sources


@pytest.mark.parametrize("workers", [1, 2, 3])
def test_the_first_bad_record_in_source_order_stops_the_run(
    tmp_path: Path, many_units: list[Path], workers: int
) -> None:
    with pytest.raises(BadData, match=rf"^{many_units[0]}:151: bad_json: .*--on-bad-record skip\)$"):
        runs.run(many_units, tmp_path / "out", workers=workers)
    with pytest.raises(BadData, match=rf"^{many_units[1]}:4: not_object: "):
        runs.run(many_units[::-1], tmp_path / "out", workers=workers)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_record_comes_before_the_damage_of_its_file_further_on(tmp_path: Path, workers: int) -> None:
    filler = b"x" * 2000  # more than one unit: damage in a unit is told before any record of it
    lines = [b'{"input_ids": [%d, 2, 3], "filler": "%s"}' % (n % 400, filler) for n in range(6000)]
    lines[120] = b"{"
    whole = gzip.compress(b"\n".join(lines))
    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(whole[:-20])
    with pytest.raises(BadData, match=r"a\.jsonl\.gz:121: bad_json"):
        runs.run(source, tmp_path / "out", workers=workers)
    with pytest.raises(BadData, match=r"a\.jsonl\.gz") as caught:
        runs.run(source, tmp_path / "out", workers=workers, on_bad_record="skip")
    assert "bad_json" not in str(caught.value)


def test_bad_records_can_be_skipped_and_are_listed(tmp_path: Path, many_units: list[Path]) -> None:
    manifest = runs.run(many_units, tmp_path / "out", on_bad_record="skip", max_length=32)
    assert manifest.bad_records == 4
    assert [(row["source"], row["line"], row["reason"]) for row in runs.rejects(tmp_path / "out")] == [
        ("a.jsonl", 151, "bad_json"),
        ("a.jsonl", 261, "wrong_type"),
        ("b.jsonl", 4, "not_object"),
        ("b.jsonl", 41, "bad_utf8"),
    ]
    assert [row["doc_id"] for row in runs.rejects(tmp_path / "out")] == [150, 260, 303, 340]
    assert verify(tmp_path / "out").ok


def test_a_failed_run_leaves_the_folder_free_for_other_options(tmp_path: Path, many_units: list[Path]) -> None:
    with pytest.raises(BadData):
        runs.run(many_units, tmp_path / "out")
    heard = runs.Heard([])
    made = runs.config(many_units, tmp_path / "out", on_bad_record="skip", max_length=64)
    pack(made, heard)
    assert any("tokenized before" in text for text in heard.notices), "what was read already is not read again"
    assert not (tmp_path / "out" / ".partial").exists()


def test_nothing_left_to_pack_is_an_error_that_says_why(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [1]}, {"input_ids": []}, {"input_ids": [2]}])
    with pytest.raises(BadData, match=r"nothing left to pack: 3 records read, left out: 2 nothing_to_train, 1 empty"):
        runs.run(source, tmp_path / "out")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_overlong_error_names_the_first_in_source_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.small_units(monkeypatch, 100)
    records = [{"input_ids": [1] * (40 if n in (17, 31) else 5)} for n in range(50)]
    source = runs.write_jsonl(tmp_path / "a.jsonl", ["", *records][1:])
    with pytest.raises(BadData, match=r"a\.jsonl:18: overlong: 40 tokens, over --max-length 32; .*--overlong"):
        runs.run(source, tmp_path / "out", max_length=32, strategy="bfd", overlong="error")
    assert runs.run(source, tmp_path / "out", max_length=40, strategy="bfd", overlong="error").documents.out == 50


# --- templates that refuse -----------------------------------------------------------------------------------


def templated(folder: Path, refused: set[int], count: int, bad: int | None = None) -> dict[str, Any]:
    """Options and a source of ``count`` records, of which the template raises for ``refused``."""
    (folder / "prompt.jinja").write_text("{{ 10 // n }}: ")
    records: list[Any] = [{"n": int(number not in refused), "completion": "words"} for number in range(count)]
    if bad is not None:
        records[bad] = b"{"
    source = runs.write_jsonl(folder / "a.jsonl", records)
    return {"sources": source, "prompt_template": folder / "prompt.jinja"}


@pytest.mark.parametrize("unit_bytes", [700, 10**7])
@pytest.mark.parametrize(
    ("refused", "bad", "error"),
    [
        (set(range(10)), None, None),  # one in a hundred is allowed
        (set(range(5, 16)), None, r"a\.jsonl:6: template_error: .*11 of the first 1,000 records"),
        ({*range(10), 1000}, None, None),  # the last is no longer among the first 1,000
        (set(range(1000, 1016)), None, r"a\.jsonl:1001: .*16 of the first 1,500 records"),  # at the end
        (set(range(0, 1500, 200)), None, None),
        (set(range(11)), 999, r"a\.jsonl:1000: bad_json"),
        (set(range(11)), 1000, r"a\.jsonl:1: template_error"),
    ],
)
def test_a_template_may_refuse_so_many_and_no_more(
    tmp_path: Path,
    refused: set[int],
    bad: int | None,
    error: str | None,
    unit_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs.small_units(monkeypatch, unit_bytes)
    options = templated(tmp_path, refused, 1500, bad)
    if error is None:
        manifest = runs.run(output=tmp_path / "out", **options)
        assert manifest.rejected == {"template_error": len(refused)}
    else:
        with pytest.raises(BadData, match=error):
            runs.run(output=tmp_path / "out", **options)


def test_refusals_spread_evenly_below_the_share_never_stop_a_run(tmp_path: Path) -> None:
    # One unit of 3,000 records; the eleventh refusal is long past record 1,000.
    options = templated(tmp_path, set(range(0, 3000, 125)), 3000)
    assert runs.run(output=tmp_path / "out", **options).rejected == {"template_error": 24}
    with pytest.raises(BadData, match=r"8 of the first 1,000 records .* more than --max-left-out 0.5%"):
        runs.run(output=tmp_path / "less", max_left_out="0.5%", **options)


# --- rejects -------------------------------------------------------------------------------------------------

GOLDEN_REJECTS = Path(__file__).parent / "golden"
_BAD_LINES = [
    b'{"input_ids": [1, 2',
    b'{"input_ids": [1, 2], "x": "\xff"}',
    b"[1, 2]",
    b'{"ids": [1, 2]}',
    b'{"input_ids": "1 2"}',
    b'{"input_ids": [1, 4000000]}',
    b'{"input_ids": [1, 2, 3], "labels": [1, 2]}',
    b'{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}',
    b'{"input_ids": [1, 2, 3], "labels": [-100, 3, -100]}',
    b'{"input_ids": [1, 2, 3], "padding": "' + b"x" * 400 + b'"}',
]
TOKEN_LINES = [
    b'{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}',
    b"",
    *_BAD_LINES,
    b'{"input_ids": [], "labels": []}',
    b'{"input_ids": [1], "labels": [1]}',
    b'{"input_ids": [1, 2, 3], "labels": [1, -100, -100]}',
    json.dumps({"input_ids": list(range(1, 21)), "labels": list(range(1, 21))}).encode(),
    json.dumps({"input_ids": list(range(1, 21)), "labels": [-100] * 16 + list(range(17, 21))}).encode(),
]
TEXT_LINES = [
    b'{"n": 1, "completion": "one two three"}',
    b'{"n": 1, "completion": "lone \\ud800 surrogate"}',
    b'{"n": 1, "completion": " \\n "}',
    b'{"n": 0, "completion": "one two three"}',
    b'{"n": 1}',
    b'{"completion": "one two three"}',
]
REJECT_RUNS: dict[str, tuple[list[bytes], dict[str, Any]]] = {
    "drop": (TOKEN_LINES, {"strategy": "bfd", "overlong": "drop"}),
    "truncate": (TOKEN_LINES[:1] + TOKEN_LINES[-5:], {"strategy": "bfd", "overlong": "truncate"}),
    "split": (TOKEN_LINES[:1] + TOKEN_LINES[-5:], {"strategy": "bfd_split"}),
    "wrapped": (TOKEN_LINES[:1] + TOKEN_LINES[-5:], {"strategy": "wrapped", "shuffle": False}),
    "template": (TEXT_LINES, {"max_left_out": "100%"}),
}


def rejects_run(folder: Path, name: str) -> Path:
    lines, options = REJECT_RUNS[name]
    source = runs.write_jsonl(folder / "in.jsonl", lines)
    if name == "template":
        (folder / "prompt.jinja").write_text("{{ 10 // n }}: ")
        options = {**options, "prompt_template": folder / "prompt.jinja"}
    options = {"on_bad_record": "skip", "max_record_bytes": 300, "max_length": 16, **options}
    runs.run(source, folder / name, **options)
    return folder / name


@pytest.mark.parametrize("name", list(REJECT_RUNS))
def test_golden_rejects(tmp_path: Path, name: str) -> None:
    output = rejects_run(tmp_path, name)
    assert (output / "rejects.jsonl").read_text() == (GOLDEN_REJECTS / f"rejects-{name}.jsonl").read_text()
    assert verify(output).ok
    told = runs.rejects(output)
    assert told == sorted(told, key=lambda row: (row["doc_id"], row["offset"]))
    lines = REJECT_RUNS[name][0]
    for row in told:
        assert row["line"] == row["doc_id"] + 1
        if row["tokens"]:
            ids = json.loads(lines[row["doc_id"]])["input_ids"]
            stretch = ids[row["offset"] : row["offset"] + row["tokens"]]
            assert row["checksum"] == reference_pack.checksum(stretch, row["offset"])
        else:
            assert row["checksum"] == row["offset"] == 0


def test_the_golden_rejects_hold_every_reason_there_is() -> None:
    reasons = {
        json.loads(line)["reason"]
        for path in GOLDEN_REJECTS.glob("rejects-*.jsonl")
        for line in path.read_text().splitlines()
    }
    refused = BAD_RECORD_REASONS | {"empty", "template_error", "overlong", "truncated", "nothing_to_train"}
    assert reasons == refused


# --- progress ------------------------------------------------------------------------------------------------


def test_progress_rises_to_its_total_stage_by_stage(
    tmp_path: Path, sample_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs.small_units(monkeypatch, 30_000)
    heard = runs.Heard([])
    pack(runs.config(sample_data / "text.jsonl", tmp_path / "out", max_length=256, shards=4), heard)
    stages = [event.stage for event in heard.events if isinstance(event, Progress)]
    assert list(dict.fromkeys(stages)) == [Stage.TOKENIZE, Stage.PLAN, Stage.WRITE]
    for stage in (Stage.TOKENIZE, Stage.PLAN, Stage.WRITE):
        events = [event for event in heard.events if isinstance(event, Progress) and event.stage is stage]
        done = [event.done for event in events]
        assert done == sorted(done)
        assert done[0] == 0
        assert done[-1] == events[-1].total
        assert len(done) > 4


def test_a_source_without_records_is_warned_of(tmp_path: Path) -> None:
    full = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [1, 2]}])
    blank = runs.write_jsonl(tmp_path / "b.jsonl", [b"", b"  "])
    heard = runs.Heard([])
    pack(runs.config([full, blank], tmp_path / "out"), heard)
    warnings = [event.text for event in heard.events if isinstance(event, Notice) and event.warning]
    assert warnings == [f"{blank}: holds no records"]


@pytest.mark.parametrize("name", ["ids.bin", "documents.bin", "unit.json"])
def test_a_bit_that_flips_in_the_cache_does_not_reach_the_dataset(tmp_path: Path, name: str) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [n + 1, n + 2, n + 3]} for n in range(50)])
    runs.run(source, tmp_path / "wanted", cache_dir=tmp_path / "cache")
    (path,) = (tmp_path / "cache").rglob(name)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    runs.run(source, tmp_path / "out", cache_dir=tmp_path / "cache")
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


def test_a_control_character_in_a_file_name_is_escaped_in_the_dataset(tmp_path: Path) -> None:
    records = [{"input_ids": [1, 2, 3]}, {"input_ids": []}, {"input_ids": list(range(1, 9))}]
    source = runs.write_jsonl(tmp_path / "a\x1b[31m.jsonl", records)
    options = {"max_length": 4, "strategy": "bfd", "overlong": "drop"}
    manifest = runs.run(source, tmp_path / "out", **options)
    assert [entry.name for entry in manifest.sources] == ["a\\x1b[31m.jsonl"]
    assert [row["source"] for row in runs.rejects(tmp_path / "out")] == ["a\\x1b[31m.jsonl"] * 2
    assert verify(tmp_path / "out").ok
    assert runs.run(source, tmp_path / "out", **options) == manifest
