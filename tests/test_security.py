"""Escapes, each tried: what a record, template, tokenizer folder, Parquet file, cache or manifest may hold against us.

Nothing of them runs code, reads or writes outside its place, takes memory without bound, or reaches a terminal raw; no
secret of the user's reaches a file, a message or an error.
"""

import gzip
import json
import os
import pickle
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from packtool import cli
from tests import runs

ROOT = Path(__file__).parent.parent
CHAT = b'{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'


@pytest.fixture
def proof(tmp_path: Path) -> Path:
    """A file that is there once foreign code ran."""
    return tmp_path / "it-ran"


class Evil:
    """Runs code where it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.proof),)


def packed(source: Path, output: Path, *more: Any, tokenizer: Path = runs.TOKENIZER) -> int:
    """Run in this process."""
    given = ["pack", source, "-o", output, "-t", tokenizer, "-q", "--workers", "1", *more]
    return cli._exit_code([str(argument) for argument in given])


# --- templates -----------------------------------------------------------------------------------------------

TEMPLATES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ messages.__class__.__base__ }}",
    "{{ messages|attr('__class__') }}",
    "{{ messages|map(attribute='__class__')|list }}",
    "{{ messages[0]['content'].format.__globals__ }}",
    "{{ '{0.__class__}'.format(messages) }}",
    "{{ '{0.__class__}'.format_map({'0': messages}) }}",
    "{{ self._TemplateReference__context }}",
    "{{ cycler.__init__.__globals__.os.mkdir('PROOF') }}",
    "{{ lipsum.__globals__['os'].mkdir('PROOF') }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ strftime_now.__globals__ }}",
    "{{ range.__self__ }}",
    "{{ ().__class__.__bases__[0].__subclasses__()[0] }}",
    "{% set x = ''['__cla' ~ 'ss__'] %}{{ x.__base__ }}",
    "{% import 'os' as os %}{{ os }}",
    "{% include '/etc/passwd' %}",
    "{% extends '/etc/passwd' %}",
    "{% from 'os' import system %}",
    "{{ messages.append(1) }}{{ messages.__setitem__ }}",
    "{{ caller.__globals__ }}",
    "{% macro m() %}{% endmacro %}{{ m.__init__ }}",
    "{% for i in range(10**12) %}x{% endfor %}",
    "{{ 'x' * 10**12 }}",
    "{{ 10 ** 10 ** 10 }}",
    "{{ [0] * 10**10 }}",
    "{{ ('x' * 10**6).replace('x', 'x' * 10**6) }}",
    "{{ 'x'|center(10**12) }}",
    "{{ '%1000000000000d' % 1 }}",
    "{{ lipsum(n=10**9) }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
]


@pytest.mark.parametrize("template", TEMPLATES, ids=range(len(TEMPLATES)))
@pytest.mark.parametrize("kind", ["chat", "prompt"])
def test_a_template_gets_nowhere(
    tmp_path: Path, proof: Path, capsys: pytest.CaptureFixture[str], template: str, kind: str
) -> None:
    (tmp_path / "t.jinja").write_text(template.replace("PROOF", str(proof)))
    if kind == "chat":
        source = runs.write_jsonl(tmp_path / "a.jsonl", [CHAT])
        more = ["--chat-template", tmp_path / "t.jinja"]
    else:
        source = runs.write_jsonl(tmp_path / "a.jsonl", [{"messages": [{"content": "a"}], "completion": "b"}])
        more = ["--prompt-template", tmp_path / "t.jinja"]
    code = packed(source, tmp_path / "out", *more)
    err = capsys.readouterr().err
    assert code in (1, 2) or not runs.rows(tmp_path / "out")[0]["input_ids"][600:], "at most a few names were printed"
    assert not proof.exists()
    assert "root:" not in err
    assert "Traceback" not in err
    for path in (tmp_path / "out").rglob("*"):
        assert not path.is_file() or b"root:x" not in path.read_bytes()


# --- tokenizer folders ---------------------------------------------------------------------------------------


def test_nothing_of_a_tokenizer_folder_is_run_or_unpickled(tmp_path: Path, proof: Path) -> None:
    folder = Path(shutil.copytree(runs.TOKENIZER, tmp_path / "tokenizer"))
    for name in ("tokenizer.pkl", "pytorch_model.bin", "training_args.bin", "tokenizer.model.pickle"):
        (folder / name).write_bytes(pickle.dumps(Evil(proof)))
    code = f"import os\nos.mkdir({str(proof)!r})\n"
    for name in ("tokenization_evil.py", "__init__.py", "modeling_evil.py", "tokenizer.py"):
        (folder / name).write_text(code)
    config = json.loads((folder / "tokenizer_config.json").read_bytes())
    config |= {"auto_map": {"AutoTokenizer": ["tokenization_evil.EvilTokenizer", None]}, "trust_remote_code": True}
    config |= {"tokenizer_class": "EvilTokenizer", "tokenizer_file": "/etc/passwd", "vocab_file": "/etc/passwd"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a text"}])
    assert packed(source, tmp_path / "out", tokenizer=folder) == 0
    assert not proof.exists()
    assert not [path for path in (tmp_path / "out").rglob("*") if path.suffix in (".py", ".pkl", ".bin", ".pickle")]


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json", "special_tokens_map.json"])
def test_a_link_in_a_tokenizer_folder_brings_no_other_file_into_the_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    secret = tmp_path / "secret"
    secret.write_text('{"private": "key"}')
    folder = Path(shutil.copytree(runs.TOKENIZER, tmp_path / "tokenizer"))
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(secret)
    source = runs.write_jsonl(tmp_path / "a.jsonl", [CHAT])
    assert packed(source, tmp_path / "out", tokenizer=folder) == 2
    err = capsys.readouterr().err
    assert f"{folder / name}: a link out of the tokenizer's folder" in err
    assert "private" not in err
    assert not (tmp_path / "out").exists()


def test_the_links_of_the_hubs_cache_are_followed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "models--a--b" / "snapshots" / "1234", tmp_path / "models--a--b" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in runs.TOKENIZER.iterdir():
        shutil.copy(path, blobs / path.name)
        (snapshot / path.name).symlink_to(Path("../../blobs") / path.name)
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a text"}])
    assert packed(source, tmp_path / "out", tokenizer=snapshot) == 0


# --- data ----------------------------------------------------------------------------------------------------


def test_python_objects_in_the_metadata_of_a_parquet_file_are_left_alone(tmp_path: Path, proof: Path) -> None:
    evil = pickle.dumps(Evil(proof))
    field = pa.field("input_ids", pa.list_(pa.int64()))
    extension = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": evil,
    }
    schema = pa.schema(
        [field, pa.field("odd", pa.binary(), metadata=extension)],
        metadata={b"pandas": evil, b"huggingface": evil},
    )
    table = pa.table({"input_ids": [[1, 2, 3]], "odd": [evil]}, schema=schema)
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(tmp_path / "a.arrow", schema) as file:
        file.write_table(table)
    for name in ("a.parquet", "a.arrow"):
        assert packed(tmp_path / name, tmp_path / f"{name}.out") == 0
    assert not proof.exists()


BOMB_BYTES = 1 << 30


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_a_bomb_of_one_record_is_too_large_in_bounded_memory(tmp_path: Path, name: str, suffix: str) -> None:
    """One string of a gigabyte, a few megabytes or less in the file."""
    source = tmp_path / f"{name}{suffix}"
    chunk = b"x" * (1 << 24)
    opened = gzip.open(source, "wb", 1) if suffix == ".gz" else zstandard.open(source, "wb")  # noqa: SIM115
    with opened as file:
        file.write(b"[" if name == "a.json" else b"")
        file.write(b'{"text": "')
        for _ in range(BOMB_BYTES // len(chunk)):
            file.write(chunk)
        file.write(b'"}')
        file.write(b"]" if name == "a.json" else b"")
    arguments = ["pack", str(source), "-o", str(tmp_path / "out"), "-t", str(runs.TOKENIZER), "--workers", "1"]
    # ru_maxrss of a child begins with what the process that started it had.
    script = f"""
import re
from pathlib import Path
from packtool import cli
code = cli._exit_code({arguments!r})
print(code, int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) >> 10)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False)
    code, peak = map(int, done.stdout.split()[-2:])
    assert code == 1, done.stderr
    assert "too_large" in done.stderr
    assert peak < 400, "MiB, whatever the file stands for"


def test_what_the_data_says_reaches_no_terminal_raw(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202e\r"
    names = [f"{evil}.jsonl".replace("/", ""), "b.jsonl"]
    for number, raw in enumerate(
        [
            json.dumps({"text": 5, "x": evil}).encode(),
            b'{"text": "' + evil.encode() + b"\xff",
            json.dumps({evil: "a"}).encode(),
        ]
    ):
        for name in names:
            source = tmp_path / str(number) / name
            source.parent.mkdir(exist_ok=True)
            source.write_bytes(b'{"text": "good"}\n' + raw + b"\n")
            assert packed(source, tmp_path / "out") in (1, 2)
            told = "".join(capsys.readouterr())
            assert not set(told.replace("\n", "")) & set("\x1b\x07\x9b\u202e\r"), told


# --- the user's own ------------------------------------------------------------------------------------------


def test_no_secret_reaches_a_file_or_a_message(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token, password = "hf_abcdefghijklmnopqrstuvwxyz012345", "pa55w0rd-of-mine"
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", token)
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a text"}])
    assert packed(source, tmp_path / "out", "--cache-dir", tmp_path / "cache") == 0
    address = f"https://me:{password}@host/a.jsonl?token={token}"
    for arguments in (
        ["pack", address, "-o", tmp_path / "o", "-t", runs.TOKENIZER],
        ["pack", source, "-o", tmp_path / "o", "-t", address],
        ["pack", f"s3://{password}@bucket/x.parquet", "-o", tmp_path / "o", "-t", runs.TOKENIZER],
    ):
        assert cli._exit_code([str(argument) for argument in arguments]) == 2
    told = "".join(capsys.readouterr())
    for secret in (token, password):
        assert secret not in told
        for path in tmp_path.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes(), path


ADDRESSES = [
    "https://me:pa55w0rd@host/x.html?token=pa55w0rd",
    "https:/me:pa55w0rd@host/x.png",
    " s3://me:pa55w0rd@bucket/x.toml",
    "//me:pa55w0rd@host/x.html",
    "me:pa55w0rd@host:x",
]


def refused_unseen(commands: list[list[Any]], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is misuse, of an address, that shows no password and makes no file."""
    before = set(folder.rglob("*"))
    for command in commands:
        assert cli._exit_code([str(argument) for argument in command]) == 2, command
        told = "".join(capsys.readouterr())
        assert " address" in told
        assert "pa55w0rd" not in told
    assert set(folder.rglob("*")) == before


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_is_no_path_and_is_not_shown(
    tmp_path: Path, address: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a text"}])
    assert packed(source, tmp_path / "done") == 0
    capsys.readouterr()
    tokenizer = ["-t", runs.TOKENIZER]
    pack = ["pack", source, "-o", "out", *tokenizer]
    commands = [
        ["pack", address, "-o", "out", *tokenizer],
        ["pack", source, "-o", "out", "-t", address],
        ["pack", source, "-o", address, *tokenizer],
        *([*pack, option, address] for option in ("--prompt-template", "--chat-template", "--cache-dir", "--config")),
        ["plan", address, *tokenizer],
        *([command, address] for command in ("stats", "show", "verify")),
        ["stats", "done", "--plot", address],
        ["show", "done", "--html", address],
        *(["verify", "done", "--source", source, f"--{kind}-template", address] for kind in ("chat", "prompt")),
        ["verify", "done", "--source", address],
    ]
    refused_unseen(commands, tmp_path, capsys)
    monkeypatch.setenv("PACKTOOL_CACHE", address)
    refused_unseen([pack], tmp_path, capsys)


@pytest.mark.parametrize("option", ["sources", "tokenizer", "output", "prompt_template", "chat_template", "cache_dir"])
@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_in_a_config_file_is_not_shown_either(
    tmp_path: Path, address: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a text"}])
    (tmp_path / "c.toml").write_text(f'{option} = "{address}"\n')
    given = {"sources": [source], "tokenizer": ["-t", runs.TOKENIZER], "output": ["-o", "out"]}
    words = [word for name, words in given.items() if name != option for word in words]
    refused_unseen([["pack", *words, "--config", "c.toml"]], tmp_path, capsys)


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_are_made_as_the_users_mask_has_it(tmp_path: Path, mask: int) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a text"}])
    before = os.umask(mask)
    try:
        assert packed(source, tmp_path / "out", "--cache-dir", tmp_path / "cache") == 0
    finally:
        os.umask(before)
    for path in (*(tmp_path / "out").rglob("*"), *(tmp_path / "cache").rglob("*")):
        wanted = (0o777 if path.is_dir() else 0o666) & ~mask
        assert stat.S_IMODE(path.stat().st_mode) == wanted, path


def test_no_code_of_a_model_is_ever_asked_for() -> None:
    """Wherever it can be said, it is said: no remote code, no pickles."""
    for path in (ROOT / "packtool").rglob("*.py"):
        text = path.read_text()
        assert "trust_remote_code=True" not in text, path
        assert "import pickle" not in text, path
        assert "allow_pickle=True" not in text, path
        assert "yaml.load" not in text, path


def test_the_folder_of_a_dataset_is_not_left_through_its_links(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Links put where files are to be written lead nowhere."""
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "a text"}])
    victim = tmp_path / "victim"
    victim.write_text("mine")
    output = tmp_path / "out"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (output / ".partial" / "ready").mkdir(parents=True)
    for name in ("README.md", "manifest.json", "rejects.jsonl", "run.json", "train-00000-of-00001.parquet"):
        (output / ".partial" / "ready" / name).symlink_to(victim)
    (output / ".partial" / "ready" / "tokenizer").symlink_to(elsewhere)
    assert packed(source, output) == 0
    assert victim.read_text() == "mine"
    assert not [path for path in output.rglob("*") if path.is_symlink()]
    shutil.rmtree(output)
    for name in ("units.txt", "command.json", "lock", "store", "plan", "ready", "shards"):
        (output / ".partial").mkdir(parents=True)
        (output / ".partial" / name).symlink_to(victim if "." in name or name == "lock" else elsewhere)
        assert packed(source, output) == 2
        assert f"{output / '.partial' / name}: a link" in capsys.readouterr().err
        shutil.rmtree(output)
    (output / ".partial" / "store").mkdir(parents=True)
    (output / ".partial" / "store" / "recipe").symlink_to(elsewhere)
    assert packed(source, output) == 2
    assert f"{output / '.partial' / 'store' / 'recipe'}: a link" in capsys.readouterr().err
    shutil.rmtree(output)
    output.mkdir()
    (output / ".partial").symlink_to(elsewhere)
    assert packed(source, output) == 2
    assert victim.read_text() == "mine"
    assert runs.names(elsewhere) == []
