"""The intake of a run: sources in, tokens in the store and the accounts of what was read out.

The first pass, the same for every command that needs tokens; knows nothing of plans, packs or the output.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, repeat

from packtool.accounts import ReadingAccounts
from packtool.config import EncoderName, FormatName, OnBadRecord
from packtool.encoders.fast import Differs, fast_encoder_name
from packtool.encoders.reference import forget_handed_on
from packtool.errors import BadData
from packtool.executor import Workers
from packtool.job import Job
from packtool.progress import Listener, Notice, Progress, Stage
from packtool.readers import Unit, cut_units, limit_units, open_unit
from packtool.readers.units import changed, identity
from packtool.sources import Compression, Kind, Source, shown
from packtool.token_store import TokenStore
from packtool.tokenizing import TokenizeTask, tokenize_unit

Chosen = Sequence[tuple[int, ...]]
"""For each unit in order, which of its records to take, rising."""


def units_of(job: Job) -> Iterator[Unit]:
    units = chain.from_iterable(
        cut_units(source, index, max_record_bytes=job.config.max_record_bytes)
        for index, source in enumerate(job.sources)
    )
    return limit_units(units, job.config.limit) if job.config.limit is not None else units


def count_records(job: Job, workers: Workers, on_event: Listener) -> list[int]:
    """How many records each unit of a job has, in order, refused ones with them; parses none."""
    counts: list[int] = []
    total = 0
    with closing(workers.run_in_order(_count_unit, units_of(job))) as found:
        for count in found:
            counts.append(count)
            total += count
            on_event(Progress(Stage.COUNT, total, None, "records", 0))
    on_event(Progress(Stage.COUNT, total, total, "records", 0))
    return counts


def _count_unit(unit: Unit) -> int:
    return open_unit(unit, ()).count()


def tokenize(
    job: Job, store: TokenStore, workers: Workers, on_event: Listener, chosen: Chosen | None = None
) -> ReadingAccounts:
    """Make the sources of a job into tokens.

    Where a fast encoder once gives other tokens than ``tokenizers``, or did in an earlier run, nothing of it is used.

    Args:
        job: what to read, and how.
        store: where the tokens go; what is there already, and may be used, is not made again.
        workers: who does the work.
        on_event: told of progress and of what is worth a line.
        chosen: for each unit in order which of its records to take, rising; None: all of all units.

    Raises:
        BadData: a bad record that stops the run, a damaged source, too many records left out.
    """
    fast = _fast_encoder(job, chosen)
    if fast is not None:
        accounts, wrong = _read_with(fast, job, store, workers, on_event, chosen)
        if wrong is None and accounts is not None:
            return _finished(accounts, job, on_event, chosen)
        again = "all of the input is encoded with tokenizers"
        on_event(Notice(f"{fast} cannot be trusted with this tokenizer: {wrong}; {again}", warning=True))
    return _finished(_read(job, store, None, workers, on_event, chosen), job, on_event, chosen)


def _read_with(
    fast: str, job: Job, store: TokenStore, workers: Workers, on_event: Listener, chosen: Chosen | None
) -> tuple[ReadingAccounts | None, str | None]:
    """The accounts of reading with the help of a fast encoder, or what it did wrong."""
    if (wrong := store.distrusted(fast)) is not None:
        return None, wrong
    try:
        accounts = _read(job, store, fast, workers, on_event, chosen)
    except Differs as difference:
        # Put down before anything is encoded again: a run that is killed then and continued must not trust it.
        store.distrust(fast, str(difference))
        return None, str(difference)
    return accounts, store.distrusted(fast)  # perhaps by another run, in a store that is shared


def _fast_encoder(job: Job, chosen: Chosen | None) -> str | None:
    """The name of the fast encoder, if this run is to try it."""
    asked = job.config.encoder
    if asked is EncoderName.TOKENIZERS or job.shape.format is FormatName.TOKENS:
        return None
    if asked is EncoderName.AUTO and not _is_worth_loading(job, chosen):
        return None
    return fast_encoder_name()


_RECORD_BYTES = 1_000
"""About what a record has, for inputs that are read in part."""


def _is_worth_loading(job: Job, chosen: Chosen | None) -> bool:
    """Whether a fast encoder saves more than the time it takes to load, which grows with the tokenizer's file.

    With a vocabulary of 128,000 (8 MB) that is 0.9 s for each of two workers, in which they encode 8 MB with
    ``tokenizers``.
    """
    size = sum(source.path.stat().st_size for source in job.sources)
    if job.config.limit is not None:
        size = min(size, job.config.limit * _RECORD_BYTES)
    if chosen is not None:
        size = min(size, sum(map(len, chosen)) * _RECORD_BYTES)
    return size >= job.tokenizer.path.stat().st_size


def _read(
    job: Job, store: TokenStore, fast: str | None, workers: Workers, on_event: Listener, chosen: Chosen | None
) -> ReadingAccounts:
    config = job.config
    accounts = ReadingAccounts(
        job.sources,
        store,
        stop_at_bad_record=config.on_bad_record is OnBadRecord.ERROR,
        max_left_out=config.max_left_out,
        max_bad_records=config.max_bad_records,
    )
    before = [identity(source.path) for source in job.sources]
    tasks = (
        TokenizeTask(unit, job.recipe, store.folder.parent, parts, fast)
        for unit, parts in zip(units_of(job), _each_units(chosen), strict=False)
    )
    total = _total_bytes(job)
    on_event(Progress(Stage.TOKENIZE, 0, total, "bytes", 0))
    store.remove_abandoned()
    try:
        with closing(workers.run_in_order(tokenize_unit, tasks)) as units:
            for unit in units:
                forget_handed_on()
                accounts.add(unit)
                on_event(Progress(Stage.TOKENIZE, accounts.bytes, total, "bytes", accounts.tokens))
    except BadData:
        store.remove_abandoned()
        _refuse_changed(job.sources, before)  # what is bad may be two halves of good files
        raise
    except BaseException:
        store.remove_abandoned()
        raise
    _refuse_changed(job.sources, before)
    accounts.finish()
    return accounts


def _refuse_changed(sources: Sequence[Source], before: Sequence[tuple[int, int, int]]) -> None:
    """Refuse sources that are not what they were: each part was read whole, but not all parts of the same file."""
    for source, was in zip(sources, before, strict=True):
        if identity(source.path) != was:
            raise changed(source.path)


def _finished(accounts: ReadingAccounts, job: Job, on_event: Listener, chosen: Chosen | None) -> ReadingAccounts:
    """Tell what there is to say of what was read."""
    total = _total_bytes(job)
    if total is not None:
        # What is no record, such as the brackets of an array or a footer, is in no unit.
        on_event(Progress(Stage.TOKENIZE, total, total, "bytes", accounts.tokens))
    if accounts.reused_units:
        on_event(Notice(f"{accounts.reused_units} of {len(accounts.units)} parts of the input were tokenized before"))
    for entry, source in zip(accounts.entries(), job.sources, strict=True):
        # An empty file has been warned of already.
        if not entry.records and job.config.limit is None and chosen is None and source.path.stat().st_size:
            on_event(Notice(f"{shown(source.path)}: holds no records", warning=True))
    return accounts


def _each_units(chosen: Chosen | None) -> Iterator[tuple[int, ...] | None]:
    # A file that has grown since its records were counted has units of which none was chosen.
    return repeat(None) if chosen is None else chain(chosen, repeat(()))


def _total_bytes(job: Job) -> int | None:
    """Of all sources; None where nobody knows how much of them will be read, or has been."""
    known = all(source.compression is Compression.NONE and source.kind is not Kind.ARROW for source in job.sources)
    return sum(source.path.stat().st_size for source in job.sources) if known and job.config.limit is None else None
