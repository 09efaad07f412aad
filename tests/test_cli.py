"""The command line as a person meets it: exit codes, errors of one line, nothing raw from the data, nothing heavy."""

import inspect
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from packtool import __version__, cli, shard_set
from packtool.config import PackConfig, PlanConfig
from tests import runs

ROOT = Path(__file__).parent.parent


@dataclass
class Ended:
    code: int
    out: str
    err: str


@pytest.fixture
def call(capfd: pytest.CaptureFixture[str]) -> Any:
    """Run a command in this process."""

    def called(*arguments: str | Path) -> Ended:
        capfd.readouterr()
        code = cli._exit_code([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ended(code, captured.out, captured.err)

    return called


def spawned(arguments: Sequence[str | Path], **options: Any) -> Ended:
    """Run a command as a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "packtool", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **{"cwd": ROOT, **options},
    )
    return Ended(done.returncode, done.stdout, done.stderr)


def packing(source: Path, output: Path, *more: str, workers: int = 1) -> list[str]:
    return ["pack", str(source), "-o", str(output), "-t", str(runs.TOKENIZER), "--workers", str(workers), *more]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A few documents of text."""
    return runs.write_jsonl(tmp_path / "a.jsonl", [{"text": "word " * (1 + n % 40)} for n in range(60)])


def assert_one_line(ended: Ended, code: int, *parts: str) -> None:
    """It failed with one line that holds the parts."""
    assert ended.code == code, ended
    assert ended.out == ""
    lines = ended.err.splitlines()
    assert len(lines) == 1, ended.err
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0], ended.err


# --- what is loaded ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "code",
    [
        "import packtool",
        "import packtool; packtool.PackConfig",
        "from packtool import cli; cli._exit_code(['--help'])",
        "from packtool import cli; cli._exit_code(['pack', '--help'])",
        "from packtool import cli; cli._exit_code(['--version'])",
        "from packtool import cli; cli._exit_code(['pack', 'a.jsonl', '-o', 'x', '-t', 'x', '-L', 'long'])",
    ],
)
def test_nothing_heavy_is_loaded(code: str) -> None:
    heavy = ("torch", "datasets", "transformers")
    script = f"import sys\n{code}\nprint('loaded', [name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "loaded []"


def test_help_loads_none_of_what_a_run_needs() -> None:
    light = "import sys; from packtool import cli; cli._exit_code(['--help']); print('loaded', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", light], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(done.stdout.splitlines()[-1].split())
    assert not loaded & {"numpy", "pyarrow", "tokenizers", "pydantic", "jinja2", "packtool.run"}


def test_a_run_over_local_files_loads_neither_torch_nor_transformers(tmp_path: Path, source: Path) -> None:
    script = f"""
import sys
from packtool import cli
assert cli._exit_code({packing(source, tmp_path / "out", "--quiet")!r}) == 0
print([name for name in ("torch", "transformers", "datasets") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(("command", "options"), [(cli.pack, PackConfig), (cli.plan, PlanConfig)])
def test_every_option_has_a_flag(command: Any, options: Any) -> None:
    assert set(inspect.signature(command).parameters) - {"config", "json"} == set(options.model_fields)


def test_version_and_help_both_ways(call: Any) -> None:
    script = Path(sys.executable).with_name("packtool")
    version = subprocess.run([str(script), "--version"], capture_output=True, text=True, check=True)
    assert version.stdout == f"packtool {__version__}\n" == spawned(["--version"]).out
    for command in ("", "pack", "plan", "stats", "show", "verify"):
        shown = call(*command.split(), "--help")
        assert not re.search(r"<\w|x>=|\.\.\.\]", shown.out), "no types of Python"
        assert shown.code == 0
        assert "Usage" in shown.out
        assert shown.err == ""


def test_help_names_every_option_of_the_contract(call: Any) -> None:
    shown = call("pack", "--help").out
    options = re.findall(r"--[a-z-]+", shown)
    contract = (
        "output tokenizer max-length strategy overlong format field bos eos eos-token pad-token prompt-template seed "
        "shuffle no-shuffle pad no-pad max-segments limit on-bad-record max-left-out group-tokens shard-tokens shards "
        "workers cache-dir overwrite quiet config"
    )
    for option in contract.split():
        assert f"--{option}" in options
    for short in ("-o", "-t", "-L", "-s"):
        assert re.search(rf"(?<!\w){short}\b", shown)


# --- a good run ----------------------------------------------------------------------------------------------


def test_pack_stats_and_verify(tmp_path: Path, source: Path) -> None:
    output = tmp_path / "out"
    packed = spawned(packing(source, output, "-L", "64", workers=2))
    assert packed.code == 0
    assert "Traceback" not in packed.err
    for part in ("documents", "60 of 60", "packs", "fill", "<|endoftext|>", "load_dataset", "SFTConfig", str(output)):
        assert part in packed.out
    assert max(len(line) for line in packed.out.splitlines() if str(output) not in line) <= 80
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", packed.out + packed.err), "no escape codes off a terminal"
    again = spawned(packing(source, output, "-L", "64"))
    assert again.code == 0
    assert "this command is done already; nothing was changed" in again.err

    shown = spawned(["stats", output])
    assert (shown.code, shown.err) == (0, "")
    values = json.loads(spawned(["stats", output, "--json"]).out)
    contract = (
        "path packs documents segments tokens trained_tokens fill max_length lower_bound_packs max_segments rejected "
        "truncated_documents truncated_tokens"
    )
    for name in contract.split():
        assert name in values
    assert values["documents"] == 60
    both = json.loads(spawned(["stats", output, output, "--json"]).out)
    assert both == [values, values]
    checked = spawned(["verify", output, "--json"])
    assert checked.code == 0
    assert json.loads(checked.out)["ok"] is True


def test_quiet_says_nothing(tmp_path: Path, source: Path, call: Any) -> None:
    assert call(*packing(source, tmp_path / "out", "--quiet")) == Ended(0, "", "")


def test_a_config_file_gives_options_and_flags_win(tmp_path: Path, source: Path, call: Any) -> None:
    path = tmp_path / "pack.toml"
    path.write_text(
        f'sources = ["{source}"]\noutput = "{tmp_path / "out"}"\ntokenizer = "{runs.TOKENIZER}"\n'
        'max_length = 128\nstrategy = "wrapped"\nshuffle = false\n'
    )
    assert call("pack", "--config", path, "-L", "64", "-q").code == 0
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["max_length"], manifest["strategy"], manifest["options"]["shuffle"]) == (64, "wrapped", False)


def test_the_cache_folder_may_come_from_the_environment(
    tmp_path: Path, source: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACKTOOL_CACHE", str(tmp_path / "env"))
    assert call(*packing(source, tmp_path / "a", "-q")).code == 0
    assert list((tmp_path / "env").iterdir())
    assert call(*packing(source, tmp_path / "b", "-q", "--cache-dir", str(tmp_path / "flag"))).code == 0
    assert list((tmp_path / "flag").iterdir())
    config = tmp_path / "c.toml"
    config.write_text(f'cache_dir = "{tmp_path / "file"}"\n')
    assert call(*packing(source, tmp_path / "c", "-q", "--config", str(config))).code == 0
    assert list((tmp_path / "file").iterdir()), "a file says it nearer than the environment"


# --- misuse --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["pakc"], ["pakc"]),
        (["pack"], ["SOURCE is missing"]),
        (["pack", "SRC"], ["-o/--output"]),
        (["pack", "SRC", "-o", "OUT"], ["-t/--tokenizer"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "--colour"], ["--colour"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "-L", "1"], ["--max-length", "greater than or equal to 2"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "-L", "x\x1b[31m"], ["--max-length"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "-s", "best"], ["--strategy", "bfd"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "-s", "bfd", "--overlong", "split"], ["bfd_split"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "-s", "in_order", "--shuffle"], ["--shuffle", "in_order"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "--shards", "2", "--shard-tokens", "9"], ["exclude each other"]),
        (["pack", "SRC", "-o", "OUT", "-t", "nowhere/tok"], ["nowhere/tok"]),
        (["pack", "nowhere.jsonl", "-o", "OUT", "-t", "TOK"], ["nowhere.jsonl"]),
        (["pack", "-", "-o", "OUT", "-t", "TOK"], []),
        (["pack", "SRC", "SRC", "-o", "OUT", "-t", "TOK"], ["SRC"]),
        (["pack", "SRC", "-o", "SRC", "-t", "TOK"], ["not a folder"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "--config", "nowhere.toml"], ["nowhere.toml"]),
        (["pack", "SRC", "-o", "OUT", "-t", "TOK", "--field", "text=body"], ["body"]),
        (["stats"], ["OUT"]),
        (["verify"], ["OUT"]),
    ],
)
def test_misuse_is_one_line_and_exit_code_2(
    tmp_path: Path,
    source: Path,
    call: Any,
    arguments: list[str],
    parts: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"SRC": source.name, "OUT": "out", "TOK": str(runs.TOKENIZER)}
    ended = call(*(names.get(argument, argument) for argument in arguments))
    assert_one_line(ended, 2, *(names.get(part, part) if part != "OUT" else part for part in parts))
    assert not (tmp_path / "out").exists()
    assert "\x1b" not in ended.err


def test_a_folder_that_is_no_dataset_is_exit_code_1(tmp_path: Path, call: Any) -> None:
    assert_one_line(call("stats", tmp_path), 1, "not a packed dataset")
    assert call("verify", tmp_path).code == 1


def test_a_damaged_dataset_fails_verify(tmp_path: Path, source: Path, call: Any) -> None:
    assert call(*packing(source, tmp_path / "out", "-q")).code == 0
    shard = runs.shards(tmp_path / "out")[0]
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(bytes(raw))
    ended = call("verify", tmp_path / "out")
    assert ended.code == 1
    assert "FAIL" in ended.out
    assert "Traceback" not in ended.err


def test_verify_compares_with_the_sources(tmp_path: Path, source: Path, call: Any) -> None:
    output = tmp_path / "out"
    assert call(*packing(source, output, "-q")).code == 0
    sound = call("verify", output, "--source", source, "--workers", "1")
    assert sound.code == 0
    assert "ok    source" in sound.out
    assert "check packs: " in sound.err
    assert "compare sources: " in sound.err
    quiet = call("verify", output, "-q", "--source", source, "--sample", "7", "--workers", "1", "--json")
    assert (quiet.code, quiet.err) == (0, "")
    assert json.loads(quiet.out)["checks"][-1]["name"] == "source"
    assert json.loads(quiet.out)["checks"][-1]["checked"] < 60
    with source.open("a") as file:
        file.write('{"text": "more"}\n')
    changed = call("verify", output, "-q", "--source", source, "--workers", "1")
    assert changed.code == 1
    assert "FAIL  source" in changed.out
    assert "has changed since" in changed.out
    assert_one_line(call("verify", output, "--source", tmp_path / "none.jsonl"), 2, "none.jsonl does not exist")
    assert_one_line(call("verify", output, "--sample", "5"), 2, "--sample")


# --- faults of the data --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bad_record_is_one_line_with_file_and_line_and_exit_code_1(tmp_path: Path, workers: int) -> None:
    # More than two units, each with a bad record.
    filler = "x" * 4000
    lines: list[Any] = [{"text": "word", "filler": filler}] * 5000
    for line in (2100, 2500, 4600):
        lines[line] = {"txt": "word"}
    source = runs.write_jsonl(tmp_path / "a.jsonl", lines)
    ended = spawned(packing(source, tmp_path / "out", "-q", workers=workers))
    assert_one_line(ended, 1, f"{source}:2101: missing_field: field 'text' is not there", "--on-bad-record skip")


def test_control_characters_in_names_and_data_are_escaped(tmp_path: Path, call: Any) -> None:
    name = "a\x1b[31m\r\nb\x07\u202e.jsonl"
    source = runs.write_jsonl(tmp_path / name, [b'{"text": "word"}', b'{"text": "\x1b[2J\xff"}'])
    ended = call(*packing(source, tmp_path / "out"))
    assert_one_line(ended, 1, ":2: bad_")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", ended.err)
    skipped = call(*packing(source, tmp_path / "out\x1b]0m", "--on-bad-record", "skip"))
    assert skipped.code == 0
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", skipped.out + skipped.err)
    assert call("stats", tmp_path / "out\x1b]0m").code == 0
    for shown in (call("stats", tmp_path / "out\x1b]0m"), call("verify", tmp_path / "out\x1b[0m")):
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u202e]", shown.out)


def test_a_name_that_is_not_utf8_works(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.jsonl")).write_bytes(b'{"text": "words"}\n{"text": 5}\n')
    ended = spawned(packing(folder, tmp_path / "out", "-q", workers=2))
    assert_one_line(ended, 1, "in/\\udcff\\udcfe.jsonl:2: wrong_type")
    ended = spawned(packing(folder, tmp_path / "out", "--on-bad-record", "skip"))
    assert ended.code == 0
    assert len(runs.rejects(tmp_path / "out")) == 1
    assert spawned(["verify", tmp_path / "out"]).code == 0


def test_nothing_to_pack_is_exit_code_1(tmp_path: Path, call: Any) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"text": " "}])
    assert_one_line(call(*packing(source, tmp_path / "out", "-q")), 1, "nothing left to pack", "1 empty")
    (tmp_path / "empty.jsonl").touch()
    assert call(*packing(tmp_path / "empty.jsonl", tmp_path / "out", "-q")).code == 1


def test_a_full_disk_is_one_line_and_what_was_done_stays(
    tmp_path: Path, source: Path, call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device", str(tmp_path / "out"))

    with monkeypatch.context() as patch:
        patch.setattr(shard_set, "write_shard", full)
        ended = call(*packing(source, tmp_path / "out", "-q"))
    assert_one_line(ended, 1, f"{tmp_path / 'out'}: No space left on device", "run the same command again")
    again = call(*packing(source, tmp_path / "out"))
    assert again.code == 0
    assert "continuing an unfinished run" in again.err


# --- interrupted ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("after", [0.0, 0.15, 0.5])
def test_ctrl_c_is_exit_code_130_and_the_next_run_goes_on(tmp_path: Path, workers: int, after: float) -> None:
    source = tmp_path / "a.jsonl"
    source.write_bytes(b"".join(b'{"text": "%s"}\n' % (b"word %d " % n * 3000) for n in range(1500)))
    output = tmp_path / "out"
    # the encoder that takes long enough to be stopped
    arguments = packing(source, output, "--encoder", "tokenizers", workers=workers)
    process = subprocess.Popen(
        [sys.executable, "-m", "packtool", *arguments],
        cwd=ROOT,
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not (output / ".partial" / "command.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(after)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the whole group hears it
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == ""
    errors = [line for line in err.splitlines() if not line.startswith("read and tokenize: ")]
    assert errors == ["error: stopped; run the same command again to go on from here"]
    assert_group_gone(process.pid)
    assert not (output / ".partial" / "lock").exists()
    assert (output / ".partial" / "command.json").exists()


def assert_group_gone(group: int) -> None:
    """Whoever was in the group, multiprocessing's own helper too, has ended or is about to."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.05)
    raise AssertionError("a process of the run is left")


def test_a_reader_that_goes_away_is_no_fault(tmp_path: Path, source: Path) -> None:
    assert spawned(packing(source, tmp_path / "out", "-q")).code == 0
    command = f"{sys.executable} -m packtool stats {tmp_path / 'out'} --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
