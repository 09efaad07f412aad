"""The conductor of a run: sources to token store to plan to shards to a published dataset.

It holds the order of the steps and nothing of what they do; the same thing as ``packtool pack``, without a
terminal.
"""

import hashlib
import heapq
import json
import os
import platform
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from packtool import __version__
from packtool.accounts import ReadingAccounts, recorded_name
from packtool.assembly import ShardTask, StoredUnitFiles, write_shard, write_units
from packtool.card import dataset_card
from packtool.config import OnBadRecord, PackConfig
from packtool.errors import BadData, Misuse
from packtool.executor import run_in_order
from packtool.files import fsync_folder, sha256_of, write_atomic, write_synced
from packtool.job import Job, difference, settle, versions
from packtool.manifest import (
    CARD_NAME,
    MANIFEST_NAME,
    REJECTS_NAME,
    RUN_NAME,
    TOKENIZER_FOLDER,
    DocumentCounts,
    FileEntry,
    Histogram,
    Manifest,
    ShardEntry,
    TokenCounts,
    TokenizerEntry,
    combined_digest,
    read_manifest,
)
from packtool.output import OutputFolder, Standing, written_names
from packtool.packing import Cut
from packtool.planning import Plan, Records, cut_shards, make_plan
from packtool.progress import Listener, Notice, Progress, Stage, nobody
from packtool.readers import Unit, cut_units, limit_units, open_unit
from packtool.rejects import Reject, write_rejects
from packtool.shards import MOST_SHARDS, ShardInfo, row_group_packs, shard_name
from packtool.sources import Compression, Kind, shown
from packtool.token_store import TokenStore
from packtool.tokenizing import TokenizeTask, tokenize_unit


def pack(config: PackConfig, on_event: Listener = nobody) -> Manifest:
    """Pack a dataset.

    Args:
        config: what to pack, how, and where to.
        on_event: told of progress and of things worth a line, in this process, between tasks.

    Returns:
        The manifest of the dataset in ``config.output``: of this run's, or of an earlier run of the same
        command that is finished already.

    Raises:
        Misuse: options, sources, tokenizer or output folder that cannot be used (exit code 2).
        BadData: a bad record, a damaged source, too many left out, nothing left to pack (exit code 1).
    """
    output = OutputFolder(config.output)
    standing = output.standing()
    job = settle(config, _recorded_options(output))
    if config.cache_dir is not None and config.cache_dir.exists() and not config.cache_dir.is_dir():
        raise Misuse(f"--cache-dir {config.cache_dir}: not a folder; give one, or a name that is free")
    for warning in job.warnings:
        on_event(Notice(warning, warning=True))
    if standing is Standing.FINISHED:
        if not config.overwrite:
            manifest = _already_done(job, output, on_event)
            output.tidy(job.command)
            return manifest
        written_names(output.path)  # what cannot be replaced in the end is said before the work
    with output.opened():
        standing = output.standing()
        if standing is Standing.FINISHED and not config.overwrite:
            raise Misuse(f"{output.path}: another run has just finished here; choose another folder, or --overwrite it")
        if output.is_begun():
            _continue_or_refuse(job, output, on_event)
        if output.is_publishing():
            output.publish()
            if not config.overwrite:
                return _already_done(job, output, on_event)
        output.begin(job.command)
        try:
            return _run(job, output, on_event)
        except BadData:
            # What was made into tokens stays for the next try, whatever its options; the folder is free again.
            output.release()
            raise


def _run(job: Job, output: OutputFolder, on_event: Listener) -> Manifest:
    started = time.time()
    store = TokenStore(job.config.cache_dir or output.partial / "store", job.recipe.key)
    accounts = _tokenize(job, store, on_event)
    tokenized = time.time()
    plan = _plan(job, store, accounts, output, on_event)
    planned = time.time()
    shards = _write_shards(job, store, accounts, plan, output, on_event)
    manifest = _write_rest(job, accounts, plan, shards, output)
    ended = time.time()
    seconds = {"tokenize": tokenized - started, "plan": planned - tokenized, "write": ended - planned}
    _write_run_file(job, accounts, output, started, seconds)
    output.publish()
    return manifest


def _recorded_options(output: OutputFolder) -> dict[str, Any]:
    """The options of the run that the folder has, unfinished or finished; empty where there is none to read."""
    if output.is_begun():
        options = output.unfinished_command().get("options")
        return options if isinstance(options, dict) else {}
    try:
        return read_manifest(output.path).options
    except BadData:
        return {}


# --- earlier runs --------------------------------------------------------------------------------------------


def _already_done(job: Job, output: OutputFolder, on_event: Listener) -> Manifest:
    """The manifest of a finished run of the same command; reads the sources again, but encodes nothing."""
    try:
        manifest = read_manifest(output.path)
    except BadData as error:
        raise Misuse(f"{error}; choose another folder, or remove this one") from None
    then = {
        "options": manifest.options,
        "sources": [source.name for source in manifest.sources],
        "tokenizer": {
            "digest": manifest.tokenizer.digest,
            "bos_ids": list(manifest.tokenizer.bos_ids),
            "eos_id": manifest.tokenizer.eos_id,
            "pad_id": manifest.tokenizer.pad_id if manifest.padded else None,
        },
        "template": manifest.template_digest,
    }
    names = [recorded_name(source.name) for source in job.sources]
    now = {**job.command, "sources": names, "versions": {}}
    if told := difference(now, then):
        raise Misuse(
            f"{output.path}: holds the dataset of another command ({'; '.join(told)}); "
            "choose another folder, or --overwrite it"
        )
    if now != {**then, "versions": {}}:
        raise Misuse(f"{output.path}: holds the dataset of another command; choose another folder, or --overwrite it")
    digests = [hashlib.sha256() for _ in job.sources]
    with closing(run_in_order(_digest_unit, _units(job), job.config.worker_count)) as found:
        for index, digest_of_unit in found:
            digests[index].update(digest_of_unit.encode())
    for source, digest, entry in zip(job.sources, digests, manifest.sources, strict=True):
        if digest.hexdigest() != entry.digest:
            raise Misuse(
                f"{output.path}: was packed from other data: {shown(source.path)} has changed since; "
                "choose another folder, or --overwrite it"
            )
    sizes = {file.name: file.bytes for file in manifest.files} | {shard.name: shard.bytes for shard in manifest.shards}
    for name, size in sizes.items():
        path = output.path / name
        if not path.is_file() or path.stat().st_size != size:
            raise Misuse(
                f"{path}: is not as this command left it (packtool verify tells more); "
                f"choose another folder, or --overwrite {output.path}"
            )
    on_event(Notice("this command is done already; nothing was changed"))
    return manifest


def _digest_unit(unit: Unit) -> tuple[int, str]:
    return unit.source, open_unit(unit, ()).digest


def _continue_or_refuse(job: Job, output: OutputFolder, on_event: Listener) -> None:
    then = output.unfinished_command()
    if then == job.command:
        on_event(Notice("continuing an unfinished run of this command"))
        return
    told = "; ".join(difference(job.command, then)) or "its record cannot be read"
    if not job.config.overwrite:
        raise Misuse(
            f"{output.path}: an unfinished run of another command is here ({told}); "
            "run that one to its end, choose another folder, or start anew with --overwrite"
        )
    if not output.is_publishing():
        output.forget_unfinished()


# --- sources to tokens ---------------------------------------------------------------------------------------


def _units(job: Job) -> Iterator[Unit]:
    units = chain.from_iterable(
        cut_units(source, index, max_record_bytes=job.config.max_record_bytes)
        for index, source in enumerate(job.sources)
    )
    return limit_units(units, job.config.limit) if job.config.limit is not None else units


def _tokenize(job: Job, store: TokenStore, on_event: Listener) -> ReadingAccounts:
    config = job.config
    accounts = ReadingAccounts(
        job.sources,
        store,
        stop_at_bad_record=config.on_bad_record is OnBadRecord.ERROR,
        max_left_out=config.max_left_out,
    )
    tasks = (TokenizeTask(unit, job.recipe, store.folder.parent) for unit in _units(job))
    total = _total_bytes(job)
    on_event(Progress(Stage.TOKENIZE, 0, total, "bytes", 0))
    with closing(run_in_order(tokenize_unit, tasks, config.worker_count)) as units:
        for unit in units:
            accounts.add(unit)
            on_event(Progress(Stage.TOKENIZE, accounts.bytes, total, "bytes", accounts.tokens))
    accounts.finish()
    if total is not None:
        # What is no record, such as the brackets of an array or a footer, is in no unit.
        on_event(Progress(Stage.TOKENIZE, total, total, "bytes", accounts.tokens))
    if accounts.reused_units:
        on_event(Notice(f"{accounts.reused_units} of {len(accounts.units)} parts of the input were tokenized before"))
    for entry, source in zip(accounts.entries(), job.sources, strict=True):
        # An empty file has been warned of already.
        if not entry.records and config.limit is None and source.path.stat().st_size:
            on_event(Notice(f"{shown(source.path)}: holds no records", warning=True))
    return accounts


def _total_bytes(job: Job) -> int | None:
    """Of all sources; None where nobody knows how much of them will be read, or has been."""
    known = all(source.compression is Compression.NONE and source.kind is not Kind.ARROW for source in job.sources)
    return sum(source.path.stat().st_size for source in job.sources) if known and job.config.limit is None else None


# --- tokens to packs -----------------------------------------------------------------------------------------


def _plan(job: Job, store: TokenStore, accounts: ReadingAccounts, output: OutputFolder, on_event: Listener) -> Plan:
    folder = output.partial / "plan"
    shutil.rmtree(folder, ignore_errors=True)
    on_event(Progress(Stage.PLAN, 0, accounts.documents, "documents", 0))

    def dealt(documents: int) -> None:
        on_event(Progress(Stage.PLAN, documents, accounts.documents, "documents", 0))

    plan = make_plan(accounts.units, store, job.rules, folder, dealt)
    if job.rules.overlong == "error" and plan.first_overlong is not None:
        doc_id, tokens = plan.first_overlong
        source, line = accounts.place(doc_id)
        raise BadData(
            f"{shown(source.path)}:{line}: overlong: {tokens:,} tokens, over --max-length {job.rules.max_length:,}; "
            "choose what becomes of such documents with --overlong"
        )
    if not plan.packs:
        reasons = accounts.rejected + plan.counts.cut_rows
        told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        records = f"{accounts.records:,} record{'' if accounts.records == 1 else 's'}"
        first = f" ({accounts.first_reject})" if accounts.first_reject else ""
        raise BadData(f"nothing left to pack: {records} read" + (f", left out: {told}{first}" if told else ""))
    return plan


def _write_shards(
    job: Job, store: TokenStore, accounts: ReadingAccounts, plan: Plan, output: OutputFolder, on_event: Listener
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
                store.ids_path(unit.summary.digest).absolute(),
                store.documents_path(unit.summary.digest).absolute(),
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
    with closing(run_in_order(write_shard, missing, config.worker_count)) as written:
        for info in written:
            finished.add(info)
            infos[info.name] = info
            tokens += info.tokens
            on_event(Progress(Stage.WRITE, tokens, plan.counts.tokens, "tokens", tokens))
    return [infos[task.name] for task in tasks]


def _plan_key(job: Job, accounts: ReadingAccounts) -> str:
    facts = {"command": job.command, "sources": [entry.digest for entry in accounts.entries()]}
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
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def find(self, name: str) -> ShardInfo | None:
        return self._infos.get(name)

    def _read(self, name: str) -> ShardInfo | None:
        try:
            record = json.loads((self._folder / f"{name}.json").read_bytes())
            if record["plan"] != self._plan_key:
                return None
            info = ShardInfo(**record["info"])
            path = self._ready / name
            return info if path.stat().st_size == info.bytes and sha256_of(path) == info.sha256 else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def add(self, info: ShardInfo) -> None:
        record = {"plan": self._plan_key, "info": asdict(info)}
        write_atomic(self._folder / f"{info.name}.json", json.dumps(record).encode())


# --- what stands beside the packs ----------------------------------------------------------------------------


def _write_rest(
    job: Job, accounts: ReadingAccounts, plan: Plan, infos: list[ShardInfo], output: OutputFolder
) -> Manifest:
    ready = output.ready
    shards = tuple(ShardEntry(**asdict(info)) for info in infos)
    with (ready / REJECTS_NAME).open("wb") as file:
        write_rejects(file, _rejects(job, accounts, plan))
        file.flush()
        os.fsync(file.fileno())
    card = dataset_card(shards, job.rules.max_length, job.rules.strategy.name, job.config.pad)
    write_synced(ready / CARD_NAME, card.encode())
    folder = ready / TOKENIZER_FOLDER
    folder.mkdir(exist_ok=True)
    for name, file_path in job.tokenizer.kept():
        write_synced(folder / name, file_path.read_bytes())
    fsync_folder(folder)
    names = [CARD_NAME, REJECTS_NAME, *(f"{TOKENIZER_FOLDER}/{name}" for name, _ in job.tokenizer.kept())]
    manifest = _manifest(job, accounts, plan, shards, tuple(_file_entry(ready, name) for name in names))
    write_synced(ready / MANIFEST_NAME, manifest.to_json())
    fsync_folder(ready)
    return manifest


def _file_entry(folder: Path, name: str) -> FileEntry:
    return FileEntry(name=name, bytes=(folder / name).stat().st_size, sha256=sha256_of(folder / name))


def _rejects(job: Job, accounts: ReadingAccounts, plan: Plan) -> Iterator[Reject]:
    rows = (accounts.rejects(), _cut_rows(plan.cuts(), job, accounts), _cut_rows(plan.untrained(), job, accounts))
    return heapq.merge(*rows, key=lambda row: (row.doc_id, row.offset))


def _cut_rows(blocks: Iterator[Records], job: Job, accounts: ReadingAccounts) -> Iterator[Reject]:
    entries = accounts.entries()
    index = 0
    for block in blocks:
        for doc_id, checksum, offset, length, whole, code in block.tolist():
            while doc_id >= entries[index].first + entries[index].rows:
                index += 1
            reason = Cut(code).name
            line = doc_id - entries[index].first + 1
            detail = _DETAILS[reason].format(whole=whole, max_length=job.rules.max_length)
            yield Reject(entries[index].name, line, doc_id, offset, length, checksum, reason, detail)


_DETAILS = {
    "overlong": "{whole} tokens, over max_length {max_length}",
    "truncated": "cut off: the document has {whole} tokens, max_length is {max_length}",
    "nothing_to_train": "no token of it carries loss (the first never does); tokens in the document: {whole}",
}


def _manifest(
    job: Job,
    accounts: ReadingAccounts,
    plan: Plan,
    shards: tuple[ShardEntry, ...],
    files: tuple[FileEntry, ...],
) -> Manifest:
    counts, special = plan.counts, job.special
    into = accounts.records - accounts.bad_records
    truncated = counts.cut_tokens["truncated"]
    rejected = accounts.rejected + counts.cut_rows
    return Manifest(
        format_version=1,
        packtool_version=__version__,
        versions=versions(),
        options=job.options,
        sources=accounts.entries(),
        limited=job.config.limit is not None,
        revisions=job.found.revisions,
        format=str(job.shape.format),
        tokenizer=TokenizerEntry(
            name=job.tokenizer.short_name,
            digest=job.recipe.tokenizer_digest,
            vocabulary_size=job.recipe.vocabulary_size,
            bos=special.bos.token,
            bos_ids=special.bos_ids,
            bos_origin=special.bos.origin,
            eos=special.eos.token,
            eos_id=special.eos.id,
            eos_origin=special.eos.origin,
            pad=special.pad.token,
            pad_id=special.pad.id,
            pad_origin=special.pad.origin,
        ),
        template_digest=job.template_digest,
        records=accounts.records,
        bad_records=accounts.bad_records,
        documents=DocumentCounts(
            into=into, out=counts.documents, left_out=into - counts.documents, truncated=counts.truncated_documents
        ),
        tokens=TokenCounts(
            into=accounts.tokens,
            out=counts.tokens,
            left_out=accounts.tokens - counts.tokens - truncated,
            truncated=truncated,
            trained=sum(shard.trained_tokens for shard in shards),
        ),
        rejected=dict(sorted(rejected.items())),
        notes=dict(sorted(accounts.notes.items())),
        rejected_tokens={reason: counts.cut_tokens[reason] for reason in sorted(rejected)},
        strategy=job.rules.strategy.name,
        max_length=job.rules.max_length,
        padded=job.config.pad,
        packs=plan.packs,
        lower_bound_packs=plan.lower_bound_packs,
        segments=counts.segments,
        max_segments=counts.most_segments,
        longest_segment=max(counts.segment_lengths),
        document_lengths=_histogram(counts.document_lengths),
        segment_lengths=_histogram(counts.segment_lengths),
        groups=len(plan.groups),
        shards=shards,
        files=files,
        content_digest=combined_digest(shard.content_digest for shard in shards),
    )


def _histogram(counts: Counter[int]) -> Histogram:
    lengths = sorted(length for length, count in counts.items() if count)
    return Histogram(lengths=tuple(lengths), counts=tuple(counts[length] for length in lengths))


def _write_run_file(
    job: Job, accounts: ReadingAccounts, output: OutputFolder, started: float, seconds: dict[str, float]
) -> None:
    values = {
        "host": socket.gethostname(),
        "python": platform.python_version(),
        "started": datetime.fromtimestamp(started, UTC).isoformat(timespec="seconds"),
        "seconds": {name: round(value, 3) for name, value in seconds.items()},
        "workers": job.config.worker_count,
        "engine": "local processes",
        "encoders": sorted(accounts.encoders),
        "reused_units": accounts.reused_units,
    }
    write_synced(output.ready / RUN_NAME, json.dumps(values, indent=2).encode() + b"\n")
