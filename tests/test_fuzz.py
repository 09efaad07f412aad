"""Random damage to every kind of input: a command ends with a code of the documentation and one line, whatever."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from packtool import cli
from packtool.errors import PacktoolError
from packtool.manifest import read_manifest
from tests import runs

Edits = list[tuple[float, bytes, int]]
edits = st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=8), st.integers(0, 12)), min_size=1, max_size=4)
"""Where, what is put there, and how many bytes go."""


def edited(raw: bytes, changes: Edits) -> bytes:
    """Some bytes replaced, put in or taken out."""
    for place, put, gone in changes:
        at = int(place * len(raw))
        raw = raw[:at] + put + raw[at + gone :]
    return raw


def ends_well(capsys: pytest.CaptureFixture[str], *arguments: Any) -> int:
    """Run in this process; 0, or 1 or 2 with one line of error."""
    capsys.readouterr()
    code = cli._exit_code([str(argument) for argument in arguments])
    err = capsys.readouterr().err
    errors = [line for line in err.splitlines() if not line.startswith("warning: ")]
    assert code in (0, 1, 2)
    assert "Traceback" not in err
    if code and arguments[0] == "pack":
        assert len(errors) == 1, err
        assert errors[0].startswith("error: ")
    return code


def packing(source: Path, output: Path, *more: Any) -> list[Any]:
    """The arguments of a run over an output that is free."""
    shutil.rmtree(output, ignore_errors=True)
    return ["pack", source, "-o", output, "-t", runs.TOKENIZER, "-q", "--workers", "1", *more]


LINES = b"""{"text": "some text", "n": 1, "x": [1, {"a": null}]}
{"text": "\\u00e9\\ud83d\\ude00 \xc3\xa9", "n": -1e5}
{"text": "", "n": true}
"""


@given(edits, st.sampled_from(["a.jsonl", "a.json"]), st.booleans())
def test_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Edits, name: str, skip: bool) -> None:
    raw = LINES if name == "a.jsonl" else b"[" + LINES.strip().replace(b"\n", b",\n") + b"]"
    (tmp_path / name).write_bytes(edited(raw, changes))
    more = ["--on-bad-record", "skip"] if skip else []
    ends_well(capsys, *packing(tmp_path / name, tmp_path / "out", *more))


@given(edits, st.sampled_from(["zstd", "none"]))
def test_parquet(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Edits, compression: str) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"input_ids": [[1, 2, 3], [4, 5]] * 20, "labels": [[1, 2, 3], [4, 5]] * 20, "s": ["x", None] * 20})
    pq.write_table(table, path, compression=compression, row_group_size=16)
    path.write_bytes(edited(path.read_bytes(), changes))
    ends_well(capsys, *packing(path, tmp_path / "out"))


TOML = b"""max_length = 64
strategy = "bfd"
field = {text = "text"}
shards = 1
seed = 5
on_bad_record = "skip"
"""


@given(edits)
def test_config_files(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Edits) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a b c"}])
    (tmp_path / "c.toml").write_bytes(edited(TOML, changes))
    ends_well(capsys, *packing(source, tmp_path / "out", "--config", tmp_path / "c.toml"))


TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message['role'] + '\\n' + message.content|trim }}<|im_end|>\\n"
    "{%- endfor %}{% if add_generation_prompt %}<|im_start|>assistant\\n{% endif %}"
)
PIECES = ["{{", "}}", "{%", "%}", " for ", " if ", "messages", ".x", "|", "'", "__class__", "(", ")", "*9**9", " end"]


@given(st.lists(st.tuples(st.floats(0, 1), st.sampled_from(PIECES), st.integers(0, 9)), max_size=4))
def test_templates(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: list[tuple[float, str, int]]) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"messages": turns}])
    raw = edited(TEMPLATE.encode(), [(place, put.encode(), gone) for place, put, gone in changes])
    (tmp_path / "t.jinja").write_bytes(raw)
    ends_well(capsys, *packing(source, tmp_path / "out", "--chat-template", tmp_path / "t.jinja"))


SMALL_TOKENIZER = {
    "version": "1.0",
    "added_tokens": [{"id": 0, "content": "<s>", "single_word": False, "lstrip": False, "rstrip": False,
                      "normalized": False, "special": True}],
    "normalizer": {"type": "NFC"},
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3}, "merges": ["a b"]},
}  # fmt: skip


@given(edits, st.sampled_from(["tokenizer.json", "tokenizer_config.json"]))
def test_tokenizer_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: Edits, name: str) -> None:
    folder = tmp_path / "tokenizer"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(SMALL_TOKENIZER))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<s>", "add_bos_token": False}))
    (folder / name).write_bytes(edited((folder / name).read_bytes(), changes))
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "abba"}])
    ends_well(capsys, *packing(source, tmp_path / "out"), "-t", folder)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset."""
    folder = tmp_path_factory.mktemp("packed")
    source = runs.write_jsonl(folder / "a.jsonl", [{"input_ids": [1, 2, 3]}, {"input_ids": [1]}] * 20)
    runs.run(source, folder / "out", max_length=16)
    return folder / "out"


@example([(0.55078125, b"", 4), (0.5501196190425671, b"", 8)], "manifest.json")
@given(edits, st.sampled_from(["manifest.json", "rejects.jsonl", "train-00000-of-00001.parquet", "README.md"]))
def test_datasets(tmp_path: Path, capsys: pytest.CaptureFixture[str], packed: Path, changes: Edits, name: str) -> None:
    folder = tmp_path / "out"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(packed, folder)
    before = (folder / name).read_bytes()
    after = edited(before, changes)
    (folder / name).write_bytes(after)
    ends_well(capsys, "stats", folder)
    assert ends_well(capsys, "verify", folder) == (0 if after == before else 1) or says_the_same(packed, folder, name)


def says_the_same(packed: Path, changed: Path, name: str) -> bool:
    """A file may be written otherwise and say the same: a manifest without its notes has none."""
    try:
        if name == "manifest.json":
            return read_manifest(packed) == read_manifest(changed)
        return bool(json.loads((packed / name).read_bytes()) == json.loads((changed / name).read_bytes()))
    except (ValueError, PacktoolError):
        return False
