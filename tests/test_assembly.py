"""Assembly: the six columns of a stretch of the plan, whatever the units and however few files may be open."""

import errno
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool import assembly
from packtool.assembly import Fetcher, ShardTask, StoredUnitFiles, assemble, read_units, write_shard, write_units
from packtool.errors import Misuse, PacktoolError
from packtool.packing import STRATEGIES
from packtool.planning import Plan, make_plan, read_packs
from tests import runs
from tests.stored import StoredRun, stored_run
from tests.test_planning import Document, in_units, rules

ROOT = Path(__file__).parent.parent

documents = st.lists(
    st.lists(st.tuples(st.integers(0, 900), st.booleans()), min_size=1, max_size=40).map(
        lambda pairs: ([id for id, _ in pairs], [trains for _, trains in pairs])
    ),
    min_size=1,
    max_size=20,
)


def plan_of(run: StoredRun, strategy: str, folder: Path, max_length: int) -> Plan:
    chosen = rules(strategy, max_length=max_length)
    return make_plan(run.units, run.store, chosen, folder, lambda _: None)


@given(
    found=documents,
    strategy=st.sampled_from(sorted(STRATEGIES)),
    size=st.integers(1, 20),
    max_length=st.integers(2, 30),
    pad_id=st.sampled_from([None, 0, 7]),
    open_files=st.sampled_from([1, 2, 100]),
    mapped_bytes=st.sampled_from([0, 1 << 20]),
)
def test_every_token_of_a_segment_is_that_of_its_document(
    found: list[Document],
    strategy: str,
    size: int,
    max_length: int,
    pad_id: int | None,
    open_files: int,
    mapped_bytes: int,
) -> None:
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "_files_allowed", lambda: open_files * 2)
        patch.setattr(assembly, "MAPPED_BYTES", mapped_bytes)
        run = stored_run(Path(name) / "store", in_units(found, size))
        plan = plan_of(run, strategy, Path(name) / "plan", max_length)
        if not plan.packs:
            return
        segments, counts = read_packs(plan.folder, 0, plan.packs)
        with Fetcher(run.files) as fetcher:
            made = assemble(segments, counts, fetcher, max_length, pad_id)

    tokens = iter(zip(made.input_ids.tolist(), made.labels.tolist(), made.position_ids.tolist(), strict=True))
    columns = zip(made.seq_lengths.tolist(), made.doc_ids.tolist(), made.doc_offsets.tolist(), strict=True)
    planned = [(s["doc_id"], s["offset"], s["length"]) for s in segments]
    real = []
    for pack_tokens, pack_segments in zip(made.pack_tokens.tolist(), made.pack_segments.tolist(), strict=True):
        total = 0
        for place in range(pack_segments):
            length, doc_id, offset = next(columns)
            total += length
            if doc_id == -1:
                assert pad_id is not None
                assert place == pack_segments - 1 > 0
                assert offset == 0
                assert [next(tokens) for _ in range(length)] == [(pad_id, -100, i) for i in range(length)]
                continue
            real.append((doc_id, offset, length))
            ids, trained = run.documents[doc_id]
            for position in range(length):
                id = ids[offset + position]
                label = id if position > 0 and trained[offset + position] else -100
                assert next(tokens) == (id, label, position)
        assert total == pack_tokens
        assert pack_tokens == max_length if pad_id is not None else pack_tokens <= max_length
    assert real == planned
    assert next(tokens, None) is None


def test_a_shard_is_the_same_however_its_row_groups_are_fetched(tmp_path: Path) -> None:
    found = [([1 + (n + i) % 90 for i in range(2 + n % 30)], [True] * (2 + n % 30)) for n in range(200)]
    run = stored_run(tmp_path / "store", in_units(found, 9))
    plan = plan_of(run, "bfd", tmp_path / "plan", 32)
    write_units(iter(run.files), tmp_path / "units")
    made = {}
    for row_group in (1, 7, 1000):
        path = tmp_path / f"{row_group}.parquet"
        task = ShardTask(path, "x", plan.folder, tmp_path / "units", 3, plan.packs - 2, row_group, 32, None)
        info = write_shard(task)
        batches = list(runs.batches(path))
        assert {batch.packs for batch in batches[:-1]} <= {row_group}
        assert info.packs == plan.packs - 5
        made[row_group] = [id for batch in batches for id in batch.input_ids.tolist()]
    assert made[1] == made[7] == made[1000]


@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
@pytest.mark.parametrize("kept", [0, 8])
@pytest.mark.parametrize("file", ["ids", "documents"])
def test_a_store_that_was_cut_short_is_an_error_that_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, kept: int, mapped_bytes: int
) -> None:
    monkeypatch.setattr(assembly, "MAPPED_BYTES", mapped_bytes)
    run = stored_run(tmp_path / "store", [[([1, 2, 3, 4], [False, True, False, True])]])
    plan = plan_of(run, "bfd", tmp_path / "plan", 8)
    path = getattr(run.files[0], file)
    path.write_bytes(path.read_bytes()[:kept])
    write_units(iter(run.files), tmp_path / "units")
    task = ShardTask(tmp_path / "s.parquet", "s", plan.folder, tmp_path / "units", 0, 1, 1, 8, None)
    with pytest.raises(PacktoolError, match=rf"^{path}: the token store was changed or cut short; run again$"):
        write_shard(task)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["plan", "store", "units"], "no half-written shard"


def test_a_list_of_units_keeps_any_path(tmp_path: Path) -> None:
    units = (
        StoredUnitFiles(Path("/a\nb\tc/ids"), Path("/ö 漢/documents"), 0),
        StoredUnitFiles(Path("/\udcff\udcfe/ids"), Path("relative"), 2**40),
    )
    write_units(iter(units), tmp_path / "units")
    assert read_units(tmp_path / "units") == units
    write_units(iter(()), tmp_path / "none")
    assert read_units(tmp_path / "none") == ()


def test_many_units_need_few_open_files(tmp_path: Path) -> None:
    sources = tmp_path / "in"
    sources.mkdir()
    for n in range(500):
        runs.write_jsonl(sources / f"{n:04}.jsonl", [{"input_ids": [n % 400, n // 400, n % 7, 5]}])
    command = (
        f"ulimit -n 60; exec {sys.executable} -m packtool pack {sources} -o {tmp_path / 'out'} -q -L 40 --workers 2"
    )
    done = subprocess.run(
        ["bash", "-c", f"{command} -t {runs.TOKENIZER} --shards 2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    packed = {doc: ids for row in runs.rows(tmp_path / "out") for doc, _, ids in runs.segments(row)}
    assert packed == {n: (n % 400, n // 400, n % 7, 5) for n in range(500)}


def test_the_limit_of_open_files_is_raised_no_further_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(assembly.resource, "setrlimit", lambda _, limits: asked.append(limits))
    for limits, allowed in (((100, 200), 200), ((1024, 1 << 20), 1 << 14), ((1 << 20, 1 << 20), 1 << 14)):
        monkeypatch.setattr(assembly.resource, "getrlimit", lambda _, limits=limits: limits)
        assert assembly._files_allowed() == allowed
    assert asked == [(200, 200), (1 << 14, 1 << 20)]


def noted_reads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """(file, offset) of every read of a store that is not mapped, as they come."""
    reads: list[tuple[int, int]] = []
    preadv = assembly.os.preadv

    def noted(handle: int, buffers: list[memoryview], offset: int) -> int:
        reads.append((handle, offset))
        return int(preadv(handle, [buffers[0][:2000]], offset))  # as a system may that gives less than was asked for

    monkeypatch.setattr(assembly, "MAPPED_BYTES", 0)
    monkeypatch.setattr(assembly.os, "preadv", noted)
    return reads


def test_ids_are_read_in_the_order_they_lie_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [([1 + n % 50] * (4 + n % 2), [True] * (4 + n % 2)) for n in range(60)]
    run = stored_run(tmp_path / "store", in_units(found, 20))
    plan = plan_of(run, "bfd", tmp_path / "plan", 16)
    segments, counts = read_packs(plan.folder, 0, plan.packs)
    reads = noted_reads(monkeypatch)
    with Fetcher(run.files) as fetcher:
        assemble(segments, counts, fetcher, 16, None)
    assert 50 < len(reads) <= 60
    stretches = [[offset for _, offset in part] for _, part in groupby(reads, key=lambda read: read[0])]
    assert len(stretches) == 3, "one unit after the other"
    assert all(offsets == sorted(offsets) for offsets in stretches)


def test_neighbours_on_the_disk_that_are_neighbours_in_the_packs_are_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [(list(range(n, n + 7)), [True] * 7) for n in range(100)]
    run = stored_run(tmp_path / "store", in_units(found, 50))
    plan = plan_of(run, "in_order", tmp_path / "plan", 16)
    segments, counts = read_packs(plan.folder, 0, plan.packs)
    reads = noted_reads(monkeypatch)
    with Fetcher(run.files) as fetcher:
        made = assemble(segments, counts, fetcher, 16, None)
    assert [offset for _, offset in reads] == [0, 0], "one for each unit"
    assert made.input_ids.tolist() == [id for ids, _ in found for id in ids]


def test_what_a_read_leaves_out_is_read_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = list(range(3000))
    run = stored_run(tmp_path / "store", [[(ids, [True] * 3000)]])
    plan = plan_of(run, "bfd", tmp_path / "plan", 4096)
    segments, counts = read_packs(plan.folder, 0, plan.packs)
    reads = noted_reads(monkeypatch)
    with Fetcher(run.files) as fetcher:
        assert assemble(segments, counts, fetcher, 4096, None).input_ids.tolist() == ids
    assert [offset for _, offset in reads] == list(range(0, 12_000, 2000))


def test_what_cannot_be_mapped_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_map(path: Path) -> None:
        raise OSError(errno.ENODEV, "no such device", str(path))

    run = stored_run(tmp_path / "store", [[([1, 2, 3, 4, 5], [True] * 5)]])
    plan = plan_of(run, "bfd", tmp_path / "plan", 16)
    monkeypatch.setattr(assembly, "_map", no_map)
    with Fetcher(run.files) as fetcher:
        assert assemble(*read_packs(plan.folder, 0, plan.packs), fetcher, 16, None).input_ids.tolist() == [
            1,
            2,
            3,
            4,
            5,
        ]


@pytest.mark.parametrize("mapped_bytes", [0, 1 << 20])
def test_no_file_of_the_store_is_held_after_a_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mapped_bytes: int
) -> None:
    monkeypatch.setattr(assembly, "MAPPED_BYTES", mapped_bytes)
    run = stored_run(tmp_path / "store", in_units([([1, 2, 3], [True] * 3)] * 20, 5))
    plan = plan_of(run, "bfd", tmp_path / "plan", 8)
    write_units(iter(run.files), tmp_path / "units")
    write_shard(ShardTask(tmp_path / "s.parquet", "s", plan.folder, tmp_path / "units", 0, plan.packs, 2, 8, None))
    process = psutil.Process()
    held = [file.path for file in process.open_files()] + [map.path for map in process.memory_maps()]
    assert not [path for path in held if str(tmp_path) in path]


def test_padding_to_a_length_that_would_take_the_memory_is_refused(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", [{"input_ids": [1, 2, 3]}])
    with pytest.raises(Misuse, match=r"--pad with --max-length 2,147,483,647: .* pad to 16,777,216 at most"):
        runs.run(source, tmp_path / "out", max_length=2**31 - 1, pad=True)
    assert runs.run(source, tmp_path / "out", max_length=2**31 - 1).packs == 1
