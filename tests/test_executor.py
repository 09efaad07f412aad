"""Tasks on processes: order, errors, how far ahead, and that nobody is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from packtool.errors import BadData, PacktoolError
from packtool.executor import run_in_order
from tests import executor_work, runs

ROOT = Path(__file__).parent.parent
WORKERS = [1, 2, 3]


def children() -> set[int]:
    """Worker processes of this one."""
    found = psutil.Process().children(recursive=True)
    return {child.pid for child in found if "resource_tracker" not in " ".join(_command(child))}


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


@pytest.mark.parametrize("workers", WORKERS)
def test_results_come_in_the_order_of_the_tasks(workers: int) -> None:
    before = children()
    assert list(run_in_order(executor_work.square, range(20), workers)) == [n * n for n in range(20)]
    assert children() == before


def test_no_task_or_one_task_starts_no_process() -> None:
    assert list(run_in_order(executor_work.square, [], 4)) == []
    assert [pid for pid, _, _ in run_in_order(executor_work.where, [0], 4)] == [os.getpid()]


def test_no_more_processes_than_tasks() -> None:
    found = {pid for pid, _, _ in run_in_order(executor_work.where, range(2), 50)}
    assert 1 <= len(found) <= 2
    assert os.getpid() not in found


@pytest.mark.parametrize("workers", WORKERS)
def test_the_first_error_in_the_order_of_the_tasks_is_raised(workers: int) -> None:
    # The second fails long before the first does.
    tasks = [(0, 0.0), (1, 0.0), (-1, 0.3), (-2, 0.0), (4, 0.0), (5, 0.0)]
    got = []
    with pytest.raises(BadData, match=r"^task -1$"):
        got.extend(run_in_order(executor_work.fail_at, tasks, workers))
    assert got == [0, 1]
    assert children() == set()


@pytest.mark.parametrize("workers", WORKERS)
@pytest.mark.parametrize("before", [0, 1, 2, 5])
def test_an_error_of_the_tasks_themselves_comes_after_those_of_all_before(workers: int, before: int) -> None:
    def tasks(bad: bool) -> Iterator[tuple[int, float]]:
        for number in range(before):
            yield (-1 if bad and number == before - 1 else number), 0.05
        raise BadData("no more")

    got = []
    with pytest.raises(BadData, match=r"^no more$"):
        got.extend(run_in_order(executor_work.fail_at, tasks(bad=False), workers))
    assert got == list(range(before))
    if before:
        with pytest.raises(BadData, match=r"^task -1$"):
            list(run_in_order(executor_work.fail_at, tasks(bad=True), workers))


@pytest.mark.parametrize("workers", WORKERS)
def test_tasks_are_read_only_a_little_ahead(workers: int) -> None:
    read = 0

    def tasks() -> Iterator[int]:
        nonlocal read
        while True:  # without end
            read += 1
            yield read

    with closing(run_in_order(executor_work.square, tasks(), workers)) as results:
        for taken in range(1, 30):
            next(results)
            assert read - taken <= 3 * workers
    assert children() == set()


def test_a_large_task_reaches_its_worker() -> None:
    assert list(run_in_order(executor_work.payload, [bytes(20 << 20), b"1"], 2)) == [20 << 20, 1]


def test_a_killed_worker_is_one_clear_error() -> None:
    with pytest.raises(PacktoolError, match=r"a worker process was killed .*run the same command again") as caught:
        list(run_in_order(executor_work.die, range(10), 2))
    assert caught.value.exit_code == 1
    assert caught.value.__suppress_context__
    assert children() == set()


def test_workers_do_not_import_the_script_nor_hear_ctrl_c() -> None:
    for _, main, ignores in run_in_order(executor_work.where, range(4), 2):
        assert main == "None"
        assert ignores
    assert sys.modules["__main__"].__name__ in ("__main__", "pytest.__main__", "xdist.remote")
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_workers_do_not_multiply_themselves_by_threads() -> None:
    assert set(run_in_order(executor_work.setting, ["TOKENIZERS_PARALLELISM"] * 3, 2)) == {"false"}


def wait_until_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in pids):
            return
        time.sleep(0.05)
    raise AssertionError(f"still running: {pids}")


def test_workers_die_with_their_parent(tmp_path: Path) -> None:
    script = (
        "from tests import executor_work; from packtool.executor import run_in_order\n"
        f"list(run_in_order(executor_work.sleep_long, [{str(tmp_path)!r}] * 2, 2))"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT)
    deadline = time.monotonic() + 60
    while len(runs.names(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    workers = [int(name) for name in runs.names(tmp_path)]
    assert len(workers) == 2
    parent.kill()
    parent.wait()
    wait_until_gone(workers)


# --- as users call it ----------------------------------------------------------------------------------------

SCRIPT = """
import sys
import packtool
config = packtool.PackConfig(sources={sources!r}, output={output!r}, tokenizer={tokenizer!r}, workers=2)
manifest = packtool.pack(config)
print(manifest.packs, manifest.documents.out)
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    """A script of two sources and two workers, without a guard."""
    sources = [str(runs.write_jsonl(tmp_path / f"{n}.jsonl", [{"input_ids": [n, 2, 3]}] * 9)) for n in (1, 2)]
    return SCRIPT.format(sources=sources, output=str(tmp_path / "out"), tokenizer=str(runs.TOKENIZER))


def test_a_script_needs_no_guard(tmp_path: Path, script: str) -> None:
    path = tmp_path / "my script.py"
    path.write_text(script)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 18\n", "")


def test_nothing_in_the_current_folder_is_run(tmp_path: Path) -> None:
    sources = [str(runs.write_jsonl(tmp_path / f"{n}.jsonl", [{"input_ids": [n, 2, 3]}] * 9)) for n in (1, 2)]
    for module in ("socket", "runpy", "pickle", "tempfile", "multiprocessing", "orjson", "numpy", "packtool"):
        (tmp_path / f"{module}.py").write_text(f"open('run', 'a').write({module!r})\nraise SystemExit(7)\n")
    command = [
        str(Path(sys.executable).parent / "packtool"),
        "pack",
        *sources,
        "-o",
        "out",
        "-t",
        str(runs.TOKENIZER),
        "--workers",
        "2",
        "-q",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (tmp_path / "run").exists()


def test_a_program_without_a_file_works_as_a_notebook_does(script: str) -> None:
    done = subprocess.run([sys.executable, "-"], input=script, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 18\n", "")
