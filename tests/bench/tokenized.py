"""From tokenized documents to packs: packtool's planning and assembly against TRL's ``bfd`` in `datasets`' map of
1,000 rows, both with ids and labels. In memory each is one process; to disk packtool writes its shards with all its
workers, and TRL maps in one process or in as many, whichever is faster.

Lengths are log-normal with median 350, as in published instruction sets; a third of each document is a prompt.
packtool takes the documents from its token store, as in a run; TRL has them in memory already.
"""

import hashlib
from pathlib import Path
from typing import Any

from tests.bench.measuring import Run, Stopwatch, Timing, run_function, take_turns
from tests.bench.report import Goal, Line
from tests.bench.setting import MAX_LENGTH, Setting

_DOCUMENTS_PER_MEGABYTE = 2_500
_UNIT_DOCUMENTS = 4_000
_VOCABULARY = 128_000
_RECIPE = "bench"


def measure_tokenized(setting: Setting) -> list[Line]:
    """In memory, then down to Parquet."""
    store = setting.fresh("store")
    documents = setting.megabytes * _DOCUMENTS_PER_MEGABYTE
    run_function(make_store, folder=str(store), documents=documents)
    lines: list[Line] = []
    for what, workers, peers, goal in (
        ("packs in memory", 0, (1,), Goal(8)),
        ("packs in Parquet", setting.workers, tuple({1, setting.workers}), Goal(3)),
    ):

        def ours(workers: int = workers) -> Run:
            folder = str(setting.fresh("ours"))
            return run_function(pack_with_packtool, store=str(store), folder=folder, workers=workers)

        def theirs(processes: int, to_disk: bool = workers > 0) -> Run:
            folder = str(setting.fresh("peer"))
            arguments = {"store": str(store), "folder": folder, "to_disk": to_disk, "processes": processes}
            return run_function(pack_with_trl, **arguments)

        timings = take_turns(
            {"packtool": ours, **{_peer(count): lambda count=count, run=theirs: run(count) for count in peers}},
            setting.rounds,
        )
        best = min(timing.seconds for name, timing in timings.items() if name != "packtool")
        for name, timing in timings.items():
            rate = f"{timing.facts['tokens'] / 1e6 / timing.seconds:.0f} Mtok/s"
            if name == "packtool":
                ratio = best / timing.seconds
                lines.append(Line(_what(documents, what), name, timing, rate, _fill(timing), ratio, "faster", goal))
            else:
                lines.append(Line(_what(documents, what), name, timing, rate, _fill(timing)))
    for name in ("store", "ours", "peer"):
        setting.fresh(name)
    return lines


def _peer(processes: int) -> str:
    return "TRL bfd, map of 1,000" + (f", {processes} processes" if processes > 1 else "")


def _what(documents: int, what: str) -> str:
    return f"{documents:,} documents → {what}"


def _fill(timing: Timing) -> float:
    return float(timing.facts["fill"])


def make_store(folder: str, documents: int) -> dict[str, Any]:
    """Documents in a token store; ids fall off as words do (the r-th most frequent one as 1/r)."""
    import numpy as np

    from packtool.encoding import EncodedDocuments
    from packtool.token_store import TokenStore

    store = TokenStore(Path(folder), _RECIPE)
    generator = np.random.default_rng(0)
    for first in range(0, documents, _UNIT_DOCUMENTS):
        n = min(_UNIT_DOCUMENTS, documents - first)
        lengths = np.clip(generator.lognormal(np.log(350), 1.0, n), 4, 20_000).astype(np.int32)
        ids = (_VOCABULARY ** generator.random(int(lengths.sum()), np.float32)).astype(np.int32)
        encoded = EncodedDocuments(ids, lengths, np.ones(n, np.int32), (lengths // 3).astype(np.int32), lengths)
        digest = _digest(first // _UNIT_DOCUMENTS)
        with store.writing(digest, "none") as writer:
            writer.add(range(n), encoded)
            writer.finish(bytes=0, rows=n, records=n, rejects=[])
    return {"seconds": 0.0, "cpu_seconds": 0.0}


def _digest(unit: int) -> str:
    return hashlib.sha256(str(unit).encode()).hexdigest()


def _stored(store: str) -> tuple[Any, list[Any]]:
    from packtool.token_store import TokenStore

    opened, summaries = TokenStore(Path(store), _RECIPE), list[Any]()
    while (summary := opened.find(_digest(len(summaries)), ("none",))) is not None:
        summaries.append(summary)
    return opened, summaries


# --- the contestants -----------------------------------------------------------------------------------------


def pack_with_packtool(store: str, folder: str, workers: int) -> dict[str, Any]:
    """Plan, then assemble row group by row group: to Arrow tables that stay in memory (0 workers), or to shards."""
    from packtool.assembly import Fetcher, ShardTask, StoredUnitFiles, assemble, write_shard, write_units
    from packtool.executor import run_in_order
    from packtool.packing import STRATEGIES
    from packtool.planning import PlacedUnit, PlanRules, cut_shards, make_plan, read_packs
    from packtool.shards import row_group_packs

    opened, summaries = _stored(store)
    units = [PlacedUnit(0, number * _UNIT_DOCUMENTS, summary) for number, summary in enumerate(summaries)]
    rules = PlanRules(STRATEGIES["bfd"], MAX_LENGTH, "truncate", True, 0, None, None)
    files = tuple(
        StoredUnitFiles(opened.ids_path(summary), opened.documents_path(summary), opened.runs_offset(summary))
        for summary in summaries
    )
    Path(folder).mkdir()
    step = row_group_packs(MAX_LENGTH)
    tables = []
    with Stopwatch() as watch:
        plan = make_plan(units, opened, rules, Path(folder) / "plan", lambda _: None)
        if workers:
            units_file = Path(folder) / "units.txt"
            write_units(iter(files), units_file)
            _, ranges = cut_shards(plan.groups, None, None, step)
            tasks = [
                ShardTask(
                    Path(folder) / f"{number}.parquet",
                    f"{number}.parquet",
                    plan.folder,
                    units_file,
                    packs.first,
                    packs.stop,
                    step,
                    MAX_LENGTH,
                    None,
                )
                for number, packs in enumerate(ranges)
            ]
            for _ in run_in_order(write_shard, tasks, workers):
                pass
        else:
            with Fetcher(files) as fetcher:
                for first in range(0, plan.packs, step):
                    segments, counts = read_packs(plan.folder, first, min(first + step, plan.packs))
                    tables.append(assemble(segments, counts, fetcher, MAX_LENGTH, None).to_arrow())
    tokens = plan.counts.tokens
    fill = tokens / (plan.packs * MAX_LENGTH)
    return {**watch.taken, "tokens": tokens, "packs": plan.packs, "fill": fill}


def pack_with_trl(store: str, folder: str, to_disk: bool, processes: int) -> dict[str, Any]:
    """TRL's ``bfd`` over a dataset in memory, its result in memory too, and then to Parquet."""
    import numpy as np
    import pyarrow as pa
    from datasets import Dataset, disable_progress_bars
    from trl import pack_dataset

    from tests.bench.end_to_end import trl_result

    disable_progress_bars()
    opened, summaries = _stored(store)
    tables = []
    for summary in summaries:
        documents = opened.documents(summary)
        ids = np.fromfile(opened.ids_path(summary), np.int32)
        ends = np.cumsum(documents.lengths)
        starts = ends - documents.lengths
        index = np.arange(len(ids)) - np.repeat(starts, documents.lengths)
        labels = np.where(index >= np.repeat(documents.runs[:, 0], documents.lengths), ids, np.int32(-100))
        offsets = pa.array(np.concatenate([[0], ends]).astype(np.int32))
        columns = [pa.ListArray.from_arrays(offsets, pa.array(values)) for values in (ids, labels)]
        tables.append(pa.table(columns, names=["input_ids", "labels"]))
    dataset = Dataset(pa.concat_tables(tables))
    Path(folder).mkdir()
    with Stopwatch() as watch:
        several = {"num_proc": processes} if processes > 1 else {}
        packed = pack_dataset(dataset, MAX_LENGTH, "bfd", map_kwargs={"keep_in_memory": True, **several})
        if to_disk:
            packed.to_parquet(f"{folder}/packed.parquet")
    return {**watch.taken, **trl_result(packed)}
