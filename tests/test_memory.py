"""Memory does not grow with the data: runs over large inputs, measured over all their processes."""

import gzip
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import runs

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
MOST = 700 * MIB
"""Of a run with two workers: three processes with their libraries, units in flight, one group's plan."""


def peak_memory(arguments: list[str]) -> int:
    """Run packtool and measure the most memory that it and its workers hold together, shared pages counted once."""
    process = subprocess.Popen([sys.executable, "-m", "packtool", *arguments], cwd=ROOT)
    peak = 0
    while process.poll() is None:
        peak = max(peak, _held(process.pid))
        time.sleep(0.1)
    assert process.returncode == 0
    return peak


def _held(pid: int) -> int:
    total = 0
    try:
        parent = psutil.Process(pid)
        family = [parent, *parent.children(recursive=True)]
    except psutil.Error:
        return 0
    for process in family:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            pass  # it has just ended
    return total


def write_documents(path: Path, size: int) -> Path:
    """About ``size`` bytes of records of tokens, 2 to 2,000 tokens long, in lines that repeat after a while."""
    block = b"".join(
        b'{"input_ids": [%s]}\n' % b",".join(b"%d" % (1 + (n * 7 + i * i) % 4000) for i in range(2 + n * n % 1999))
        for n in range(2000)
    )
    with path.open("wb") as file:
        for _ in range(-(-size // len(block))):
            file.write(block)
    return path


@pytest.mark.soak
@pytest.mark.parametrize("strategy", ["bfd_split", "wrapped", "in_order"])
def test_a_gigabyte_is_packed_in_bounded_memory(tmp_path: Path, strategy: str) -> None:
    source = write_documents(tmp_path / "a.jsonl", 1 << 30)
    arguments = ["pack", str(source), "-o", str(tmp_path / "out"), "-t", str(runs.TOKENIZER), "-q"]
    peak = peak_memory([*arguments, "--workers", "2", "-s", strategy])
    assert peak < MOST, f"{peak / MIB:,.0f} MiB"
    peak = peak_memory(["verify", str(tmp_path / "out"), "-q", "--workers", "2"])
    assert peak < MOST, f"verify: {peak / MIB:,.0f} MiB"


@pytest.mark.soak
@pytest.mark.parametrize("suffix", [".json", ".jsonl.gz"])
def test_two_gigabytes_that_one_reader_cuts_are_packed_in_bounded_memory(tmp_path: Path, suffix: str) -> None:
    lines = write_documents(tmp_path / "a.jsonl", 1 << 24).read_bytes()
    source = tmp_path / f"b{suffix}"
    rounds = -(-(2 << 30) // len(lines))
    with gzip.open(source, "wb", 1) if suffix.endswith(".gz") else source.open("wb") as file:
        if suffix == ".json":
            elements = lines.rstrip(b"\n").replace(b"\n", b",\n")
            file.write(b"[" + elements)
            for _ in range(rounds - 1):
                file.write(b",\n" + elements)
            file.write(b"]")
        else:
            for _ in range(rounds):
                file.write(lines)
    arguments = ["pack", str(source), "-o", str(tmp_path / "out"), "-t", str(runs.TOKENIZER), "-q", "--workers", "2"]
    peak = peak_memory(arguments)
    assert peak < MOST, f"{peak / MIB:,.0f} MiB"


@pytest.mark.soak
def test_a_gigabyte_of_records_that_are_left_out_is_packed_in_bounded_memory(tmp_path: Path) -> None:
    filler = b"x" * 300
    kinds = [b"[1]", b"[]", b"[1, 2]", b'"none"']
    block = b"".join(b'{"input_ids": %s, "filler": "%s"}\n' % (kinds[n % 4], filler) for n in range(4000))
    source = tmp_path / "a.jsonl"
    with source.open("wb") as file:
        for _ in range((1 << 30) // len(block)):
            file.write(block)
    arguments = ["pack", str(source), "-o", str(tmp_path / "out"), "-t", str(runs.TOKENIZER), "-q", "--workers", "2"]
    peak = peak_memory([*arguments, "--on-bad-record", "skip"])
    assert peak < MOST, f"{peak / MIB:,.0f} MiB"
