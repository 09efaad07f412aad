"""The intake of a run: sources in, tokens in the store and the accounts of what was read out.

The first pass, the same for every command that needs tokens; knows nothing of plans, packs or the output.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, repeat

from packtool.accounts import ReadingAccounts
from packtool.config import OnBadRecord
from packtool.executor import run_in_order
from packtool.job import Job
from packtool.progress import Listener, Notice, Progress, Stage
from packtool.readers import Unit, cut_units, limit_units, open_unit
from packtool.readers.units import changed, identity
from packtool.sources import Compression, Kind, shown
from packtool.token_store import TokenStore
from packtool.tokenizing import TokenizeTask, tokenize_unit


def units_of(job: Job) -> Iterator[Unit]:
    units = chain.from_iterable(
        cut_units(source, index, max_record_bytes=job.config.max_record_bytes)
        for index, source in enumerate(job.sources)
    )
    return limit_units(units, job.config.limit) if job.config.limit is not None else units


def count_records(job: Job, on_event: Listener) -> list[int]:
    """How many records each unit of a job has, in order, refused ones with them; parses none."""
    counts: list[int] = []
    total = 0
    with closing(run_in_order(_count_unit, units_of(job), job.config.worker_count)) as found:
        for count in found:
            counts.append(count)
            total += count
            on_event(Progress(Stage.COUNT, total, None, "records", 0))
    on_event(Progress(Stage.COUNT, total, total, "records", 0))
    return counts


def _count_unit(unit: Unit) -> int:
    return open_unit(unit, ()).count()


def tokenize(
    job: Job, store: TokenStore, on_event: Listener, chosen: Sequence[tuple[int, ...]] | None = None
) -> ReadingAccounts:
    """Make the sources of a job into tokens.

    Args:
        job: what to read, and how.
        store: where the tokens go; what is there already is not made again.
        on_event: told of progress and of what is worth a line.
        chosen: for each unit in order which of its records to take, rising; None: all of all units.

    Raises:
        BadData: a bad record that stops the run, a damaged source, too many records left out.
    """
    config = job.config
    accounts = ReadingAccounts(
        job.sources,
        store,
        stop_at_bad_record=config.on_bad_record is OnBadRecord.ERROR,
        max_left_out=config.max_left_out,
    )
    before = [identity(source.path) for source in job.sources]
    tasks = (
        TokenizeTask(unit, job.recipe, store.folder.parent, parts)
        for unit, parts in zip(units_of(job), _each_units(chosen), strict=False)
    )
    total = _total_bytes(job)
    on_event(Progress(Stage.TOKENIZE, 0, total, "bytes", 0))
    store.remove_abandoned()
    try:
        with closing(run_in_order(tokenize_unit, tasks, config.worker_count)) as units:
            for unit in units:
                accounts.add(unit)
                on_event(Progress(Stage.TOKENIZE, accounts.bytes, total, "bytes", accounts.tokens))
    except BaseException:
        store.remove_abandoned()
        raise
    for source, was in zip(job.sources, before, strict=True):
        if identity(source.path) != was:
            # Each part of it was read whole, but not all parts of the same file.
            raise changed(source.path)
    accounts.finish()
    if total is not None:
        # What is no record, such as the brackets of an array or a footer, is in no unit.
        on_event(Progress(Stage.TOKENIZE, total, total, "bytes", accounts.tokens))
    if accounts.reused_units:
        on_event(Notice(f"{accounts.reused_units} of {len(accounts.units)} parts of the input were tokenized before"))
    for entry, source in zip(accounts.entries(), job.sources, strict=True):
        # An empty file has been warned of already.
        if not entry.records and config.limit is None and chosen is None and source.path.stat().st_size:
            on_event(Notice(f"{shown(source.path)}: holds no records", warning=True))
    return accounts


def _each_units(chosen: Sequence[tuple[int, ...]] | None) -> Iterator[tuple[int, ...] | None]:
    # A file that has grown since its records were counted has units of which none was chosen.
    return repeat(None) if chosen is None else chain(chosen, repeat(()))


def _total_bytes(job: Job) -> int | None:
    """Of all sources; None where nobody knows how much of them will be read, or has been."""
    known = all(source.compression is Compression.NONE and source.kind is not Kind.ARROW for source in job.sources)
    return sum(source.path.stat().st_size for source in job.sources) if known and job.config.limit is None else None
