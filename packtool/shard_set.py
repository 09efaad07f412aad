"""The shards of a run: which there are to be, which an earlier try finished, and the writing of the others.

Takes a plan and the store, gives what was written; knows nothing of what stands beside the shards.
"""

import hashlib
import json
import shutil
from contextlib import closing
from dataclasses import asdict

from packtool.accounts import ReadingAccounts
from packtool.assembly import ShardTask, StoredUnitFiles, write_shard, write_units
from packtool.contract import MOST_SHARDS
from packtool.errors import BadData
from packtool.executor import Workers
from packtool.files import Unreadable, read_json, sha256_of, write_atomic
from packtool.job import Job
from packtool.output import OutputFolder
from packtool.planning import Plan, cut_shards
from packtool.progress import Listener, Notice, Progress, Stage
from packtool.shards import ShardInfo, row_group_packs, shard_name
from packtool.token_store import TokenStore


def write_shards(
    job: Job,
    store: TokenStore,
    accounts: ReadingAccounts,
    plan: Plan,
    output: OutputFolder,
    workers: Workers,
    on_event: Listener,
) -> list[ShardInfo]:
    config = job.config
    try:
        row_group, ranges = cut_shards(
            plan.groups, config.shard_tokens, config.shards, row_group_packs(job.rules.max_length)
        )
    except ValueError:
        raise BadData(f"--shards {config.shards}: there are only {plan.packs:,} packs; give no more shards") from None
    if len(ranges) > MOST_SHARDS:
        raise BadData(f"{len(ranges):,} shards, more than {MOST_SHARDS:,}; raise --shard-tokens and --group-tokens")
    units_file = output.partial / "units.txt"
    write_units(
        (
            StoredUnitFiles(
                store.ids_path(unit.summary).absolute(),
                store.documents_path(unit.summary).absolute(),
                store.runs_offset(unit.summary),
            )
            for unit in accounts.units
        ),
        units_file,
    )
    finished = _FinishedShards(output, _plan_key(job, accounts))
    tasks = [
        ShardTask(
            path=output.ready / shard_name(index, len(ranges)),
            name=shard_name(index, len(ranges)),
            plan_folder=plan.folder,
            units_file=units_file,
            first_pack=packs.first,
            stop_pack=packs.stop,
            row_group_packs=row_group,
            max_length=job.rules.max_length,
            pad_id=job.special.pad.id if config.pad else None,
        )
        for index, packs in enumerate(ranges)
    ]
    infos = {task.name: info for task in tasks if (info := finished.find(task.name)) is not None}
    if infos:
        on_event(Notice(f"{len(infos)} of {len(tasks)} shards were written before"))
    tokens = sum(info.tokens for info in infos.values())
    on_event(Progress(Stage.WRITE, tokens, plan.counts.tokens, "tokens", tokens))
    missing = [task for task in tasks if task.name not in infos]
    with closing(workers.run_in_order(write_shard, missing)) as written:
        for info in written:
            finished.add(info)
            infos[info.name] = info
            tokens += info.tokens
            on_event(Progress(Stage.WRITE, tokens, plan.counts.tokens, "tokens", tokens))
    return [infos[task.name] for task in tasks]


def _plan_key(job: Job, accounts: ReadingAccounts) -> str:
    # The tokens too, not the content alone: a shard of tokens that are no longer trusted is none of this plan.
    sources = [(entry.digest, entry.tokens, entry.checksum) for entry in accounts.entries()]
    facts = {"command": job.command, "sources": sources}
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


class _FinishedShards:
    """Shards of an earlier try that are whole and of the very same plan."""

    def __init__(self, output: OutputFolder, plan_key: str) -> None:
        self._folder = output.partial / "shards"
        self._ready = output.ready
        self._plan_key = plan_key
        self._folder.mkdir(exist_ok=True)
        self._infos = {path.stem: self._read(path.stem) for path in self._folder.glob("*.json")}
        for path in self._ready.iterdir():
            if self._infos.get(path.name) is None:
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def find(self, name: str) -> ShardInfo | None:
        return self._infos.get(name)

    def _read(self, name: str) -> ShardInfo | None:
        try:
            record = read_json(self._folder / f"{name}.json")
            if record["plan"] != self._plan_key:
                return None
            info = ShardInfo(**record["info"])
            path = self._ready / name
            return info if path.stat().st_size == info.bytes and sha256_of(path) == info.sha256 else None
        except (OSError, Unreadable, KeyError, TypeError):
            return None

    def add(self, info: ShardInfo) -> None:
        record = {"plan": self._plan_key, "info": asdict(info)}
        write_atomic(self._folder / f"{info.name}.json", json.dumps(record).encode())
