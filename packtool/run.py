"""The conductor of a run: sources to token store to plan to shards to a published dataset.

It holds the order of the steps and nothing of what they do; the same thing as ``packtool pack``, without a
terminal.
"""

import os
import shutil
import threading
import time
from contextlib import suppress
from pathlib import Path

from packtool.accounts import ReadingAccounts
from packtool.config import PackConfig
from packtool.earlier import already_done, continue_or_refuse, recorded_options
from packtool.errors import BadData, Misuse
from packtool.executor import Workers
from packtool.head_start import head_start
from packtool.intake import tokenize
from packtool.inventory import write_inventory, write_run_file
from packtool.job import Job, settle
from packtool.manifest import Manifest, refuse_inside_dataset
from packtool.output import OutputFolder, written_names
from packtool.planning import Plan, make_plan
from packtool.progress import Listener, Notice, Progress, Stage, nobody
from packtool.scratch import remove_abandoned_scratch
from packtool.shard_set import write_shards
from packtool.token_store import TokenStore


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
    with Workers(config.worker_count) as workers:
        if threading.active_count() == 1:  # others may have processes of their own to start
            head_start(config, workers)
        return pack_with(workers, config, on_event)


def pack_with(workers: Workers, config: PackConfig, on_event: Listener = nobody) -> Manifest:
    """The same as ``pack``, with processes that may have had their head start already."""
    _refuse_places(config)
    output = OutputFolder(config.output)
    finished = output.is_finished()
    job = settle(config, recorded_options(output))
    for warning in job.warnings:
        on_event(Notice(warning, warning=True))
    if finished:
        if not config.overwrite:
            manifest = already_done(job, output, on_event)
            output.tidy(job.command)
            return manifest
        written_names(output.path)  # what cannot be replaced in the end is said before the work
    with output.opened():
        if output.is_finished() and not config.overwrite:
            raise Misuse(f"{output.path}: another run has just finished here; choose another folder, or --overwrite it")
        if output.is_begun():
            continue_or_refuse(job, output, on_event)
        if output.is_publishing():
            output.publish()
            if not config.overwrite:
                return already_done(job, output, on_event)
        output.begin(job.command)
        with suppress(OSError):
            remove_abandoned_scratch()  # of a run that was killed: one that goes on has none of its own
        try:
            return _run(job, output, workers, on_event)
        except BadData:
            # What was made into tokens stays for the next try, whatever its options; the folder is free again.
            output.release()
            raise


def _refuse_places(config: PackConfig) -> None:
    """A dataset with anything else in its folder is not sound, so nothing is written there."""
    refuse_inside_dataset("-o", config.output)
    if config.cache_dir is None:
        return
    refuse_inside_dataset("--cache-dir", config.cache_dir)
    cache, output = (Path(os.path.realpath(path)) for path in (config.cache_dir, config.output))
    if output in (cache, *cache.parents):
        raise Misuse(f"--cache-dir {config.cache_dir}: in the output folder; choose one beside it")


def _run(job: Job, output: OutputFolder, workers: Workers, on_event: Listener) -> Manifest:
    started = time.time()
    store = TokenStore(job.config.cache_dir or output.partial / "store", job.recipe.key)
    accounts = tokenize(job, store, workers, on_event)
    tokenized = time.time()
    plan = _plan(job, store, accounts, output, on_event)
    planned = time.time()
    shards = write_shards(job, store, accounts, plan, output, workers, on_event)
    manifest = write_inventory(job, accounts, plan, shards, output)
    ended = time.time()
    seconds = {"tokenize": tokenized - started, "plan": planned - tokenized, "write": ended - planned}
    write_run_file(job, accounts, output, started, seconds)
    output.publish()
    return manifest


def _plan(job: Job, store: TokenStore, accounts: ReadingAccounts, output: OutputFolder, on_event: Listener) -> Plan:
    folder = output.partial / "plan"
    shutil.rmtree(folder, ignore_errors=True)
    on_event(Progress(Stage.PLAN, 0, accounts.documents, "documents", 0))

    def dealt(documents: int) -> None:
        on_event(Progress(Stage.PLAN, documents, accounts.documents, "documents", 0))

    plan = make_plan(accounts.units, store, job.rules, folder, dealt)
    if (refusal := accounts.refusal_of(plan, job.rules)) is not None:
        raise BadData(refusal)
    return plan
