"""Every kind of bad input, and what becomes of it: an exit code and one line that says what and where, or a reject."""

import gzip
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packtool import cli
from tests import runs

GOOD = {
    "text": b'{"text": "good"}',
    "tokens": b'{"input_ids": [1, 2, 3]}',
    "labels": b'{"input_ids": [1, 2, 3], "labels": [-100, 2, 3]}',
    "mask": b'{"input_ids": [1, 2, 3], "loss_mask": [0, 1, 1]}',
    "chat": b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
}


class Said:
    """What a command ended with."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out = code, out
        self.lines = err.splitlines()
        self.error = next((line for line in self.lines if line.startswith("error: ")), "")

    def is_one_line(self, code: int, *words: str) -> None:
        """One line of error with these words, after warnings at most."""
        assert self.code == code, self.lines
        assert [line for line in self.lines if not line.startswith("warning: ")] == [self.error], self.lines
        for word in words:
            assert word in self.error, (word, self.error)


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Run the command line in this process."""

    def called(*arguments: Any) -> Said:
        capsys.readouterr()
        code = cli._exit_code([str(argument) for argument in arguments])
        return Said(code, *capsys.readouterr())

    return called


def packing(*sources: Path, output: Path, more: tuple[str, ...] = ()) -> list[Any]:
    """The arguments of a run."""
    return ["pack", *sources, "-o", output, "-t", runs.TOKENIZER, "-q", "--workers", "1", *more]


# --- records -------------------------------------------------------------------------------------------------

BAD_RECORDS = [
    ("text", b"not json", "bad_json"),
    ("text", b'{"text": "cut', "bad_json"),
    ("text", b'{"text": "a"} {"text": "b"}', "bad_json"),
    ("text", b'["text"]', "not_object"),
    ("text", b'"text"', "not_object"),
    ("text", b"null", "not_object"),
    ("text", b'{"text": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "bad_json"),
    ("text", b'{"text": "\xff"}', "bad_utf8"),
    ("text", b'{"text": "a \\ud800 b"}', "lone_surrogate"),
    ("text", b'\xef\xbb\xbf{"text": "a"}', "bad_json"),
    ("text", b"{}", "missing_field"),
    ("text", b'{"text": null}', "missing_field"),
    ("text", b'{"text": 5}', "wrong_type"),
    ("text", b'{"text": NaN}', "wrong_type"),
    ("text", b'{"text": "' + b"x" * 5000 + b'"}', "too_large"),
    ("tokens", b'{"input_ids": [1, -2]}', "token_out_of_range"),
    ("tokens", b'{"input_ids": [1, 4096]}', "token_out_of_range"),
    ("tokens", b'{"input_ids": [1, 4294967297]}', "token_out_of_range"),
    ("tokens", b'{"input_ids": [1, 99999999999999999999999]}', "token_out_of_range"),
    ("tokens", b'{"input_ids": [1.0, 2]}', "wrong_type"),
    ("tokens", b'{"input_ids": [true]}', "wrong_type"),
    ("tokens", b'{"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}', "bad_mask"),
    ("labels", b'{"input_ids": [1, 2], "labels": [1]}', "mask_length"),
    ("labels", b'{"input_ids": [1, 2], "labels": [1, 7]}', "bad_label"),
    ("mask", b'{"input_ids": [1, 2], "loss_mask": [0, 2]}', "bad_mask"),
    ("mask", b'{"input_ids": [1, 2], "loss_mask": [0, 0.5]}', "bad_mask"),
    ("chat", b'{"messages": [{"role": "assistant", "content": "b", "weight": 7}]}', "bad_mask"),
    ("chat", b'{"messages": [{"role": "assistant", "content": "b", "train": true, "weight": 0}]}', "bad_mask"),
    ("chat", b'{"messages": "no"}', "wrong_type"),
    ("chat", b'{"messages": [5]}', "wrong_type"),
]


@pytest.mark.parametrize(("kind", "record", "reason"), BAD_RECORDS, ids=range(len(BAD_RECORDS)))
def test_a_bad_record_stops_the_run_at_its_line_or_is_listed_with_a_quotation(
    tmp_path: Path, call: Callable[..., Said], kind: str, record: bytes, reason: str
) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [GOOD[kind], b"", record, GOOD[kind]])
    more = ("--max-record-bytes", "4000") if reason == "too_large" else ()
    output = tmp_path / "out"
    call(*packing(source, output=output, more=more)).is_one_line(1, f"{source}:3: {reason}: ")
    assert not (output / "manifest.json").exists()
    assert call(*packing(source, output=output, more=(*more, "--on-bad-record", "skip"))).code == 0
    (row,) = (row for row in runs.rejects(output) if row["reason"] != "nothing_to_train")
    assert (row["line"], row["reason"]) == (3, reason)
    start = record.lstrip(b'[{" ').decode("utf-8", "ignore")[:4]
    assert start in row["detail"] or "bad_utf8" in reason or "\ufeff" in start, row["detail"]
    assert len(row["detail"]) < 300


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_row_over_the_limit_is_refused_by_its_used_columns_alone(
    tmp_path: Path, call: Callable[..., Said], kind: str
) -> None:
    table = pa.table({"text": ["good", "y" * 5000, "fine"], "other": ["x" * 9000] * 3})
    source = tmp_path / f"a.{kind}"
    if kind == "parquet":
        pq.write_table(table, source)
    else:
        with pa.ipc.new_stream(source, table.schema) as writer:
            writer.write_table(table)
    output = tmp_path / "out"
    more = ("--field", "text=text", "--max-record-bytes")
    call(*packing(source, output=output, more=(*more, "4999"))).is_one_line(
        1, f"{source}:2: too_large: 5,000 bytes, over the limit of 4,999: text: yyy"
    )
    assert call(*packing(source, output=output, more=(*more, "4999", "--on-bad-record", "skip"))).code == 0
    assert [(row["line"], row["reason"]) for row in runs.rejects(output)] == [(2, "too_large")]
    assert call(*packing(source, output=tmp_path / "all", more=(*more, "5000"))).code == 0


def test_a_null_is_quoted_where_there_is_nothing_else(tmp_path: Path, call: Callable[..., Said]) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [GOOD["text"], b'{"text": null}'])
    said = call(*packing(source, output=tmp_path / "out"))
    assert "{'text': None}" in "".join(said.lines)


ACCEPTED = [
    (b'{"text": "a\\u0000b"}', 1),
    ('{"text": "a\u2028b"}'.encode(), 1),
    (b'{"text": "a"}\r', 1),
    (b'{"text": "a\\r\\nb"}', 1),
    ('{"text": "a\ufeffb"}'.encode(), 1),
    (b'{"text": "a", "text": "b"}', 1),
    (b'{"text": "a", "other": NaN, "more": 99999999999999999999999}', 1),
    (b'{"text": "a", "other": "\\ud800"}', 1),
    (b"   ", 0),
    (b'{"text": ""}', 0),
    (b'{"text": " \\n\\t"}', 0),
]


@pytest.mark.parametrize(("record", "documents"), ACCEPTED, ids=range(len(ACCEPTED)))
def test_what_looks_odd_and_is_none_the_worse_is_accepted(
    tmp_path: Path, call: Callable[..., Said], record: bytes, documents: int
) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"\xef\xbb\xbf" + GOOD["text"] + b"\n" + record + b"\n" + GOOD["text"])
    assert call(*packing(source, output=tmp_path / "out")).code == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert manifest["documents"]["out"] == 2 + documents
    assert manifest["records"] == 3 - (not record.strip())


# --- files ---------------------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def overwrite_middle(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    middle = len(raw) // 3
    raw[middle : middle + 400] = bytes(range(200)) * 2
    path.write_bytes(raw)


def overwrite_footer(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-60:-10] = b"\xff" * 50
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("suffix", "damage", "words"),
    [
        (".jsonl.gz", cut, "damaged gzip after"),
        (".jsonl.gz", overwrite_middle, "damaged gzip after"),
        (".jsonl.zst", cut, "damaged zstd after"),
        (".parquet", overwrite_middle, "damaged Parquet, row group"),
        (".parquet", overwrite_footer, "damaged Parquet, footer"),
        (".parquet", cut, "damaged Parquet, footer"),
        (".arrow", cut, "damaged Arrow file"),
    ],
)
def test_a_damaged_file_is_named_with_the_place_and_finished_units_are_kept(
    tmp_path: Path, call: Callable[..., Said], suffix: str, damage: Callable[[Path], None], words: str
) -> None:
    rows = [{"input_ids": [1 + (n * 31 + i * i) % 4000 for i in range(200)]} for n in range(300)]
    first = runs.write_jsonl(tmp_path / "a.jsonl", rows[:50])
    second = runs.converted(runs.write_jsonl(tmp_path / "rows", rows), tmp_path / f"b{suffix}")
    whole = second.read_bytes()
    damage(second)
    output = tmp_path / "out"
    call(*packing(first, second, output=output)).is_one_line(1, f"error: {second}: {words}")
    second.write_bytes(whole)
    again = call(*[argument for argument in packing(first, second, output=output) if argument != "-q"])
    assert again.code == 0
    if "row group" in words:  # the others are found out at the look at the first records already
        assert any("were tokenized before" in line for line in again.lines)


def test_sources_that_do_not_go_together_are_misuse_that_names_both(tmp_path: Path, call: Callable[..., Said]) -> None:
    text = runs.write_jsonl(tmp_path / "a.jsonl", [GOOD["text"]])
    tokens = runs.write_jsonl(tmp_path / "b.jsonl", [GOOD["labels"]])
    call(*packing(text, tokens, output=tmp_path / "out")).is_one_line(2, str(text), str(tokens))
    pq.write_table(pa.table({"body": [{"inner": "a"}]}), tmp_path / "c.parquet")
    nested = packing(tmp_path / "c.parquet", output=tmp_path / "out", more=("--field", "text=body.inner"))
    call(*nested).is_one_line(2, f"{tmp_path / 'c.parquet'}", "body.inner", "nested")


def test_what_holds_nothing_is_warned_of_and_leaves_nothing_to_pack(tmp_path: Path, call: Callable[..., Said]) -> None:
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "blank.jsonl").write_bytes(b"\n  \n\t\r\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("foreign")
    good = runs.write_jsonl(tmp_path / "good.jsonl", [GOOD["text"]])
    for number, name in enumerate(("empty.jsonl", "blank.jsonl", "folder")):
        said = call(*packing(tmp_path / name, output=tmp_path / "out"))
        said.is_one_line(1, "nothing to pack", name)
        assert not (tmp_path / "out").exists()
        said = call(*packing(good, tmp_path / name, output=tmp_path / str(number)))
        assert said.code == 0
        assert any(line.startswith("warning: ") and name in line for line in said.lines)


def test_what_is_no_file_of_data_is_refused_or_passed_over_by_name(tmp_path: Path, call: Callable[..., Said]) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    runs.write_jsonl(folder / "good.jsonl", [GOOD["text"]])
    (folder / "loop.jsonl").symlink_to(folder / "loop.jsonl")
    (folder / "dangling.jsonl").symlink_to(folder / "nowhere")
    (folder / "device.jsonl").symlink_to("/dev/zero")
    (folder / "round").symlink_to(folder)
    (folder / "notes.txt").write_text("foreign")
    os.mkfifo(folder / "pipe.jsonl")
    for name in ("loop.jsonl", "dangling.jsonl", "device.jsonl", "notes.txt", "pipe.jsonl"):
        call(*packing(folder / name, output=tmp_path / "out")).is_one_line(2, name)
    said = call(*packing(folder, output=tmp_path / "out"))
    assert said.code == 0
    for name in ("loop.jsonl", "dangling.jsonl", "device.jsonl", "round", "notes.txt", "pipe.jsonl"):
        assert name in said.lines[0]


# --- tokenizers ----------------------------------------------------------------------------------------------


def edited(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    """A tokenizer.json with something in it changed."""

    def edit(path: Path) -> None:
        values = json.loads(path.read_bytes())
        change(values)
        path.write_text(json.dumps(values))

    return edit


GROWS = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}


@pytest.mark.parametrize(
    "damage",
    [
        cut,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\xff\xfe{}"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text("{}"),
        edited(lambda values: values["model"].update(type="Nope")),
        edited(lambda values: values.update(post_processor={"type": "Nope"})),
        edited(lambda values: values.update(pre_tokenizer={"type": "Nope"})),
        edited(lambda values: values.update(model=None)),
        edited(lambda values: values["model"]["merges"].append("zzz yyy")),
        edited(lambda values: values["model"].update(continuing_subword_prefix="x")),  # ends the process that loads it
        edited(lambda values: values.update(normalizer={"type": "Sequence", "normalizers": [GROWS] * 4})),
        edited(lambda values: values.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        edited(lambda values: values.update(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAAAA"})),
        edited(lambda values: values.update(model={"type": "WordLevel", "vocab": {"a": 2**31}, "unk_token": "a"})),
        edited(lambda values: values["added_tokens"][0].update(id=2**32 - 1)),
    ],
    ids=range(16),
)
def test_a_damaged_tokenizer_is_misuse_that_names_the_file(
    tmp_path: Path, call: Callable[..., Said], damage: Callable[[Path], None]
) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [GOOD["text"]])
    folder = Path(shutil.copytree(runs.TOKENIZER, tmp_path / "tokenizer"))
    damage(folder / "tokenizer.json")
    arguments = ["pack", source, "-o", tmp_path / "out", "-t", folder, "-q", "--workers", "1"]
    call(*arguments).is_one_line(2, f"{folder / 'tokenizer.json'}: ")
    assert not (tmp_path / "out").exists()


# --- manifests -----------------------------------------------------------------------------------------------


def manifest_edits() -> dict[str, Callable[[dict[str, Any]], Any]]:
    """Changes to a manifest that no reader may take."""
    return {
        "up": lambda m: m["shards"][0].update(name="../train-00000-of-00001.parquet"),
        "absolute": lambda m: m["shards"][0].update(name="/etc/passwd"),
        "file_up": lambda m: m["files"][0].update(name="../README.md"),
        "file_deep": lambda m: m["files"][0].update(name="tokenizer/../../README.md"),
        "source_up": lambda m: m["sources"][0].update(name="../../etc/passwd"),
        "huge": lambda m: m.update(packs=2**70),
        "huge_shard": lambda m: m["shards"][0].update(packs=2**70),
        "negative": lambda m: m["shards"][0].update(bytes=-1),
        "float": lambda m: m.update(packs=1.5),
        "version": lambda m: m.update(format_version=2),
        "version_true": lambda m: m.update(format_version=True),
        "version_float": lambda m: m.update(format_version=1.0),
        "version_text": lambda m: m.update(format_version="1"),
        "no_version": lambda m: m.pop("format_version"),
        "unknown": lambda m: m.update(__reduce__="os.system"),
    }


READERS: dict[str, Callable[[Callable[..., Said], Path], tuple[int, str]]] = {
    "stats": lambda call, folder: by_command(call, "stats", folder),
    "stats_json": lambda call, folder: by_command(call, "stats", folder, "--json"),
    "verify": lambda call, folder: by_command(call, "verify", folder),
    "torch": lambda _, folder: by_loader(folder),
}


def by_command(call: Callable[..., Said], *arguments: Any) -> tuple[int, str]:
    said = call(*arguments)
    return said.code, said.out + "\n".join(said.lines)


def by_loader(folder: Path) -> tuple[int, str]:
    from packtool.errors import PacktoolError
    from packtool.torch import PackedDataset

    try:
        PackedDataset(folder)[0]
    except PacktoolError as error:
        return error.exit_code, str(error)
    return 0, ""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset."""
    folder = tmp_path_factory.mktemp("packed")
    source = runs.write_jsonl(folder / "a.jsonl", [GOOD["tokens"]] * 20)
    runs.run(source, folder / "out", max_length=16)
    return folder / "out"


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("edit", manifest_edits())
def test_a_manifest_that_cannot_be_trusted_is_refused_by_every_reader(
    tmp_path: Path, call: Callable[..., Said], packed: Path, edit: str, reader: str
) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "out"))
    values = json.loads((folder / "manifest.json").read_bytes())
    manifest_edits()[edit](values)
    (folder / "manifest.json").write_text(json.dumps(values))
    code, said = READERS[reader](call, folder)
    assert code == 1, said
    assert "manifest.json" in said
    assert "Traceback" not in said


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["manifest.json", "train-00000-of-00001.parquet"])
@pytest.mark.parametrize("kind", ["link", "loop", "pipe", "folder"])
def test_what_is_no_file_of_the_dataset_is_refused_by_every_reader(
    tmp_path: Path, call: Callable[..., Said], packed: Path, name: str, kind: str, reader: str
) -> None:
    folder = Path(shutil.copytree(packed, tmp_path / "out"))
    (folder / name).unlink()
    if kind == "link":
        (folder / name).symlink_to(packed / name)
    elif kind == "loop":
        (folder / name).symlink_to(folder / name)
    elif kind == "pipe":
        os.mkfifo(folder / name)
    else:
        (folder / name).mkdir()
    code, said = READERS[reader](call, folder)
    assert code == 1, said
    assert name in said
    assert "Traceback" not in said


def test_compressed_sources_are_decompressed_whole(tmp_path: Path, call: Callable[..., Said]) -> None:
    """Several members or frames are one file."""
    line = GOOD["text"] + b"\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line) + gzip.compress(line))
    (tmp_path / "b.jsonl.zst").write_bytes(zstandard.compress(line) + zstandard.compress(line))
    assert call(*packing(tmp_path / "a.jsonl.gz", tmp_path / "b.jsonl.zst", output=tmp_path / "out")).code == 0
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes())["records"] == 4
