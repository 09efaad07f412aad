"""Faults of the system while a run is at work: one line that names a path, exit code 1, and what was finished kept."""

import errno
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import psutil
import pytest

from packtool import cli
from packtool.errors import BadData
from packtool.readers import cut_units, lines, open_unit
from packtool.readers.units import read_exactly
from packtool.run import pack
from packtool.sources import find_sources
from tests import runs

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tokens, about 300 kB, with some that are left out."""
    records = [{"input_ids": [1 + (n * 7 + i) % 499 for i in range(n * n % 241)]} for n in range(700)]
    return runs.write_jsonl(tmp_path_factory.mktemp("in") / "a.jsonl", records)


@pytest.fixture(scope="module")
def wanted(tmp_path_factory: pytest.TempPathFactory, source: Path) -> dict[str, bytes]:
    """What an undisturbed run gives."""
    output = tmp_path_factory.mktemp("wanted") / "out"
    runs.run(source, output, max_length=512, shards=3, group_tokens=10_000)
    return runs.content(output)


def arguments(source: Path, output: Path, *more: str) -> list[str]:
    """Of a run that gives ``wanted``."""
    options = ["-L", "512", "--shards", "3", "--group-tokens", "10000", "--workers", "1", "-q"]
    return ["pack", str(source), "-o", str(output), "-t", str(runs.TOKENIZER), *options, *more]


def called(capsys: pytest.CaptureFixture[str], source: Path, output: Path, *more: str) -> tuple[int, str]:
    """Run in this process: exit code, and what was said on standard error."""
    code = cli._exit_code(arguments(source, output, *more))
    return code, capsys.readouterr().err


def assert_named(code: int, err: str, reason: str) -> None:
    """One line, with a reason and the path that it is about."""
    assert code == 1, err
    assert err.startswith("error: /"), err
    assert err.count("\n") == 1, err
    assert reason in err
    assert "Traceback" not in err


# --- a full disk ---------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """Makes a disk of so many kilobytes, or another size of it."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", disk], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting is not allowed here: {mounted.stderr.strip()}")

    def sized(kilobytes: int) -> Path:
        subprocess.run(["mount", "-o", f"remount,size={kilobytes}k", disk], check=True)
        return disk

    yield sized
    subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("step", [60, pytest.param(4, marks=pytest.mark.soak)])
def test_a_disk_that_is_full_anywhere_is_named_and_the_run_goes_on_once_there_is_room(
    small_disk: Callable[[int], Path],
    source: Path,
    wanted: dict[str, bytes],
    capsys: pytest.CaptureFixture[str],
    step: int,
) -> None:
    sizes = range(4, 800, step)
    failed = 0
    for kilobytes in sizes:
        output = small_disk(kilobytes) / "out"
        code, err = called(capsys, source, output)
        if code:
            failed += 1
            assert_named(code, err, "No space left on device; finished work is kept")
            assert not [path for path in output.rglob("*") if ".tmp-" in path.name]
            assert not (output / "manifest.json").exists()
            small_disk(4000)
            assert called(capsys, source, output)[0] == 0
        assert runs.content(output) == wanted
        shutil.rmtree(output)
    assert failed > len(sizes) // 2, "most of them were too small"
    assert failed < len(sizes)


def test_a_full_disk_is_named_by_workers_too(
    small_disk: Callable[[int], Path], source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "b.jsonl"
    other.write_bytes(b"".join(reversed(source.read_bytes().splitlines(keepends=True))))
    output = small_disk(500) / "out"
    code = cli._exit_code([*arguments(source, output, "--workers", "2"), str(other)])
    assert_named(code, capsys.readouterr().err, "No space left on device")
    assert workers_left() == []


def workers_left() -> list[list[str]]:
    """Processes that this one started, but for multiprocessing's own helper."""
    commands = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    return [command for command in commands if command and "resource_tracker" not in " ".join(command)]


def test_a_file_that_may_grow_no_further_is_named(tmp_path: Path, source: Path, wanted: dict[str, bytes]) -> None:
    output = tmp_path / "out"
    for kilobytes in (1, 100):
        done = subprocess.run(
            [sys.executable, "-m", "packtool", *arguments(source, output)],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (kilobytes << 10, kilobytes << 10)),  # noqa: B023
            capture_output=True,
            text=True,
            cwd=ROOT,
            check=False,
        )
        assert_named(done.returncode, done.stderr, "File too large")
    assert cli._exit_code(arguments(source, output)) == 0
    assert runs.content(output) == wanted


# --- any change to the file system that fails ----------------------------------------------------------------


class Failing:
    """Lets the ``point``-th call of one of ``names`` in the module os fail."""

    def __init__(self, patch: pytest.MonkeyPatch, names: tuple[str, ...], point: int, number: int) -> None:
        self.failed: str | None = None
        self._left = point
        self._number = number
        for name in names:
            patch.setattr(os, name, self._counted(name, getattr(os, name)))

    def _counted(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def calling(*arguments: Any, **options: Any) -> Any:
            self._left -= 1
            if self._left == -1:
                self.failed = name
                # As the system does it: an error of a call on a name has the name, one on a handle has none.
                names = [os.fspath(a) for a in arguments[:1] if isinstance(a, str | bytes | os.PathLike)]
                raise OSError(self._number, os.strerror(self._number), *names)
            return call(*arguments, **options)

        return calling


@pytest.mark.parametrize("step", [13, pytest.param(1, marks=pytest.mark.soak)])
def test_a_change_to_the_disk_that_fails_is_named_and_the_run_goes_on_from_there(
    tmp_path: Path, source: Path, wanted: dict[str, bytes], capsys: pytest.CaptureFixture[str], step: int
) -> None:
    names = ("fsync", "rename", "replace", "mkdir")
    cli._exit_code(arguments(source, tmp_path / "first"))  # what is loaded once is loaded
    failed: list[str] = []
    for point in range(step // 2, 10_000, step):
        output = tmp_path / str(point)
        capsys.readouterr()
        with pytest.MonkeyPatch.context() as patch:
            fault = Failing(patch, names, point, errno.EIO)
            code, err = called(capsys, source, output)
        if fault.failed is None:
            assert code == 0
            break
        failed.append(fault.failed)
        if code:
            assert_named(code, err, "Input/output error; finished work is kept")
            assert not [path for path in output.rglob("*") if ".tmp-" in path.name]
            assert called(capsys, source, output)[0] == 0
        assert runs.content(output) == wanted, fault.failed
        assert not (output / ".partial").exists()
    assert len(failed) * step > 40


# --- sources -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fails_at", [0, 1])
def test_a_disk_that_cannot_be_read_is_named(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], fails_at: int
) -> None:
    """At the look at the first records, and later."""
    calls = 0

    def read(*arguments: Any) -> bytes:
        nonlocal calls
        calls += 1
        if calls > fails_at:
            raise OSError(errno.EIO, "Input/output error")
        return read_exactly(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "read_exactly", read)
        code, err = called(capsys, source, tmp_path / "out")
    assert_named(code, err, f"{source}: Input/output error")


Change = Callable[[Path], None]


def grow(path: Path) -> None:
    """As a program does that is still writing to it."""
    with path.open("ab") as file:
        file.write(b'{"input_ids": [1, 2, 3]}\n')


def shrink(path: Path) -> None:
    """As a program does that starts it anew."""
    os.truncate(path, path.stat().st_size // 2)


def replace(path: Path) -> None:
    """Another file of the same size and time under the name."""
    stat = path.stat()
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes().replace(b"[15, ", b"[16, "))
    os.utime(other, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    other.replace(path)


def write_into(path: Path) -> None:
    """One byte, in place; the time of the last change tells."""
    with path.open("rb+") as file:
        file.seek(15)
        file.write(b"9")
    os.utime(path, (0, 0))


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_rows_that_change_after_their_digest_was_taken_are_not_stored_under_it(
    tmp_path: Path, source: Path, suffix: str
) -> None:
    mine = runs.converted(source, tmp_path / f"b{suffix}")
    found = find_sources([mine]).sources[0]
    reader = open_unit(next(cut_units(found, 0)))
    assert reader.digest
    write_into(mine)
    with pytest.raises(BadData, match=r"changed while it was read|damaged"):
        list(reader.records())


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst", ".json", ".parquet", ".arrow"])
@pytest.mark.parametrize("change", [Path.unlink, shrink, grow, replace, write_into])
def test_a_source_that_changes_while_it_is_read_is_named(
    tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str], suffix: str, change: Change
) -> None:
    """It changes once the first part of the input is read, which is another file."""
    mine = runs.converted(source, tmp_path / f"b{suffix}")
    done = False

    def changing(event: Any) -> None:
        nonlocal done
        if not done and getattr(event, "done", 0) > 0:
            change(mine)
            done = True

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packtool.terminal.progress", lambda _: nullcontext(changing))
        code = cli._exit_code([*arguments(source, tmp_path / "out"), str(mine)])
    err = capsys.readouterr().err
    assert done
    assert code == 1, err
    assert err.startswith(f"error: {mine}"), err
    assert err.count("\n") == 1, err
    assert not (tmp_path / "out" / "manifest.json").exists()
    # Nothing of it stands in the way of the next try, which goes on from what was read.
    runs.converted(source, mine)
    assert cli._exit_code([*arguments(source, tmp_path / "out"), str(mine)]) == 0
    runs.run([source, mine], tmp_path / "wanted", max_length=512, shards=3, group_tokens=10_000)
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


def shrink_in_a_line(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 7)


def replace_by_less(path: Path) -> None:
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes()[:-7])
    other.replace(path)


def replace_by_rubbish(path: Path) -> None:
    """Of the same size, so that only what a file is says that it is another one."""
    other = path.with_suffix(".other")
    other.write_bytes(b"]" * path.stat().st_size)
    other.replace(path)


@pytest.mark.parametrize("policy", ["error", "skip"])
@pytest.mark.parametrize("change", [shrink_in_a_line, replace_by_less, replace_by_rubbish])
def test_a_source_that_changes_between_cutting_and_reading_is_named_not_its_records(
    tmp_path: Path,
    source: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    change: Change,
    policy: str,
) -> None:
    mine = runs.converted(source, tmp_path / "b.jsonl")
    runs.small_units(monkeypatch, mine.stat().st_size // 4)
    calls = 0

    def changing(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            change(mine)
        return open_unit(*given)

    monkeypatch.setattr("packtool.tokenizing.open_unit", changing)
    code, err = called(capsys, mine, tmp_path / "out", "--on-bad-record", policy)
    assert calls >= 3
    assert code == 1, err
    assert err == f"error: {mine} changed while it was read: run again once nothing writes to it\n"
    assert not (tmp_path / "out" / "manifest.json").exists()


# --- no permission, and processes that die -------------------------------------------------------------------

NOBODY = 65534


def as_nobody(arguments: list[str], err: Path) -> tuple[int, str]:
    """Run in a fork of this process, whose files another user may not be able to load: exit code, standard error."""
    child = os.fork()
    if not child:
        code = 99
        try:
            with err.open("wb") as file:
                os.dup2(file.fileno(), 2)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            os.setresgid(NOBODY, NOBODY, NOBODY)
            os.setresuid(NOBODY, NOBODY, NOBODY)
            code = cli._exit_code(arguments)
            sys.stderr.flush()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), err.read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run as somebody else")
def test_no_permission_is_named(tmp_path: Path, source: Path) -> None:
    """For the source, the folder of the output, the output itself, the cache and the tokenizer."""
    # Once here, so that what is imported late is there for the forks.
    assert cli._exit_code(arguments(source, tmp_path / "out")) == 0
    assert cli._exit_code(arguments(tmp_path / "none.jsonl", tmp_path / "out")) == 2
    place = Path(tempfile.mkdtemp())  # pytest's own folders are nobody else's to enter
    try:
        place.chmod(0o755)
        mine = Path(shutil.copy(source, place / "a.jsonl"))
        tokenizer = Path(shutil.copytree(runs.TOKENIZER, place / "tokenizer"))
        free = place / "free"
        free.mkdir()
        free.chmod(0o777)
        closed = free / "closed"
        closed.mkdir()
        unreadable = Path(shutil.copy(source, place / "b.jsonl"))
        unreadable.chmod(0)
        secret = Path(shutil.copytree(tokenizer, place / "secret"))
        (secret / "tokenizer.json").chmod(0)
        usual = [str(mine), "-o", str(free / "out"), "-t", str(tokenizer)]
        cases: list[tuple[Path, list[str]]] = [
            (unreadable, [str(unreadable), *usual[1:]]),
            (place / "out", [str(mine), "-o", str(place / "out"), *usual[3:]]),
            (closed, [str(mine), "-o", str(closed), *usual[3:]]),
            (closed, [*usual, "--cache-dir", str(closed)]),
            (closed, [*usual, "--cache-dir", str(closed / "below")]),
            (secret, [*usual[:3], "-t", str(secret)]),
        ]
        for path, given in cases:
            code, err = as_nobody(["pack", *given, "-q", "--workers", "1"], free / "err")
            assert_named(code, err, "Permission denied")
            assert str(path) in err
            assert not (free / "out").exists() or runs.names(free / "out") == [".partial"]
    finally:
        shutil.rmtree(place)


def test_a_worker_that_the_system_kills_is_named_and_the_run_goes_on_from_there(tmp_path: Path, source: Path) -> None:
    script = f"""
import sys, psutil
from packtool import cli, intake
from tests import runs, test_faults
import pytest
runs.small_units(pytest.MonkeyPatch(), 20_000)
told = intake.Progress
killed = False
def progress(*arguments):
    global killed
    if not killed and arguments[1] > 60_000:
        [c for c in psutil.Process().children() if "resource_tracker" not in " ".join(c.cmdline())][0].kill()
        killed = True
    return told(*arguments)
intake.Progress = progress
sys.exit(cli._exit_code({arguments(source, tmp_path / "out", "--workers", "2")!r}))
"""
    killed = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=False, timeout=120
    )
    assert killed.returncode == 1, killed.stderr
    assert killed.stderr == (
        "error: a worker process was killed (SIGKILL), as the system does when memory runs out; finished work is "
        "kept, run the same command again, perhaps with fewer --workers\n"
    )
    heard = runs.Heard([])
    with pytest.MonkeyPatch.context() as patch:
        runs.small_units(patch, 20_000)
        options = {"max_length": 512, "shards": 3, "group_tokens": 10_000}
        pack(runs.config(source, tmp_path / "out", **options), heard)
        runs.run(source, tmp_path / "wanted", **options)
    assert any("tokenized before" in text for text in heard.notices)
    assert runs.content(tmp_path / "out") == runs.content(tmp_path / "wanted")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_that_cannot_be_written_costs_no_dataset(tmp_path: Path, source: Path, stream: str) -> None:
    command = [sys.executable, "-m", "packtool", *arguments(source, tmp_path / "out")]
    command.remove("-q")
    with Path("/dev/full").open("wb") as full:
        streams: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: full}
        done = subprocess.run(command, text=True, cwd=ROOT, check=False, **streams)
    assert (tmp_path / "out" / "manifest.json").exists()
    if stream == "stderr":
        assert done.returncode == 0
        assert "written to" in done.stdout
    else:
        assert done.returncode == 1
        assert done.stderr.splitlines()[-1] == (
            f"error: standard output: No space left on device; the summary is lost, but the dataset in "
            f"{tmp_path / 'out'} is finished"
        )


def test_a_reader_of_progress_that_goes_away_is_no_fault(tmp_path: Path, source: Path) -> None:
    command = [sys.executable, "-m", "packtool", *arguments(source, tmp_path / "out")]
    command.remove("-q")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, cwd=ROOT)
    assert process.stderr is not None
    process.stderr.close()
    assert process.wait(60) == 0
    assert (tmp_path / "out" / "manifest.json").exists()
