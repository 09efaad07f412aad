"""What packing would make of the same records with other strategies and lengths: options in, numbers and advice out.

Tokenizes once, plans by the rules of ``pack`` itself, and writes no dataset.
"""

import math
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from packtool.accounts import ReadingAccounts
from packtool.advice import Advice, advise
from packtool.config import PackConfig, PlanConfig, StrategyName
from packtool.errors import BadData
from packtool.executor import Workers
from packtool.intake import count_records, tokenize
from packtool.job import Job, check_strategy, default_strategy, plan_rules, settle
from packtool.manifest import refuse_inside_dataset
from packtool.outcome import Outcome
from packtool.packing import STRATEGIES, Histogram, only_halves
from packtool.planning import Plan, PlanRules, make_plan
from packtool.progress import Listener, Notice, Progress, Stage, nobody
from packtool.sampling import Sample, choose_records, dealt, estimate
from packtool.scratch import scratch_folder
from packtool.statistics import SegmentsPerPack
from packtool.token_store import TokenStore


@dataclass(frozen=True, slots=True)
class Comparison:
    """What ``packtool plan`` finds."""

    format: str
    sampled: int | None
    """Records in the sample, where one was asked for: all numbers are then estimates. None: everything was read."""
    records: int
    bad_records: int
    documents: int
    """Records that became tokens."""
    tokens: int
    outcomes: tuple[Outcome, ...]
    """By length, then by strategy, in the order asked for."""
    advice: Advice

    def to_json(self) -> dict[str, Any]:
        """Plain values under the names above and those of Outcome, Advice and SegmentsPerPack."""
        return {**asdict(self), "outcomes": [asdict(outcome) for outcome in self.outcomes]}


def plan(config: PlanConfig, on_event: Listener = nobody) -> Comparison:
    """Compare strategies and lengths on the same records, before any dataset is made.

    Every number of an outcome is what the manifest and the statistics of a dataset packed with these options say.

    Args:
        config: what to read, and which strategies and lengths to try.
        on_event: told of progress and of things worth a line, in this process, between tasks.

    Raises:
        Misuse: options, sources or tokenizer that cannot be used (exit code 2).
        BadData: a bad record, a damaged source, too many left out, or no combination leaves anything to pack
            (exit code 1).
        PacktoolError: the temporary folder cannot be made or written (exit code 1).
    """
    if config.cache_dir is not None:
        refuse_inside_dataset("--cache-dir", config.cache_dir)
    runs = [config.pack_config(name, length) for length in config.max_length for name in _strategies(config)]
    job = settle(runs[0], {})
    for warning in job.warnings:
        on_event(Notice(warning, warning=True))
    with scratch_folder() as folder, Workers(job.config.worker_count) as workers:
        choice = _choose(config, job, workers, on_event)
        cache = None if choice is not None else config.cache_dir  # pack has no use for a part of the tokens
        store = TokenStore(cache or folder / "store", job.recipe.key)
        accounts = tokenize(job, store, workers, on_event, None if choice is None else choice.records)
        sample = None if choice is None else _sample(accounts, store, choice.population, config.seed)
        outcomes = _outcomes(job, runs, store, accounts, sample, folder / "plan", on_event)
    if all(outcome.refused for outcome in outcomes):
        raise BadData(outcomes[0].refused)
    scale = 1.0 if sample is None else sample.population / sample.records
    return Comparison(
        format=str(job.shape.format),
        sampled=None if sample is None else sample.records,
        records=accounts.records if sample is None else sample.population,
        bad_records=round(accounts.bad_records * scale),
        documents=round(accounts.documents * scale),
        tokens=round(accounts.tokens * scale),
        outcomes=outcomes,
        advice=advise(
            outcomes,
            job.shape.format,
            default_strategy(job.shape),
            chooses_tokens=job.shape.chooses_tokens,
            sampled=sample is not None,
        ),
    )


@dataclass(frozen=True, slots=True)
class _Choice:
    """Which records are in the sample."""

    records: tuple[tuple[int, ...], ...]
    """For each unit of the job."""
    population: int


def _choose(config: PlanConfig, job: Job, workers: Workers, on_event: Listener) -> _Choice | None:
    """The sample that was asked for; None where all records are to be read."""
    if config.sample is None:
        return None
    counts = np.array(count_records(job, workers, on_event), np.int64)
    population = int(counts.sum())
    if population <= config.sample:
        on_event(Notice(f"there are only {population:,} records; all of them are read"))
        return None
    chosen = choose_records(population, config.sample, config.seed)
    ends = np.cumsum(counts)
    bounds = np.searchsorted(chosen, ends).tolist()
    firsts = (ends - counts).tolist()
    units = zip([0, *bounds], bounds, firsts, strict=False)
    return _Choice(tuple(tuple((chosen[a:b] - first).tolist()) for a, b, first in units), population)


def _sample(accounts: ReadingAccounts, store: TokenStore, population: int, seed: int) -> Sample:
    units = [store.documents(unit.summary) for unit in accounts.units]
    doc_ids = [
        unit.first_row + documents.rows.astype(np.int64) for unit, documents in zip(accounts.units, units, strict=True)
    ]
    refused = np.array([reject.doc_id for reject in accounts.rejects()], np.int64)
    return dealt(units, np.concatenate(doc_ids), refused, population, seed)


def _strategies(config: PlanConfig) -> tuple[StrategyName, ...]:
    if config.strategy is not None:
        for name in config.strategy:
            check_strategy(config, name)
        return config.strategy
    fitting = (strategy for strategy in STRATEGIES.values() if strategy.takes(config.overlong))
    return tuple(StrategyName(each.name) for each in fitting if each.shuffles or not config.shuffle)


def _outcomes(
    job: Job,
    runs: Sequence[PackConfig],
    store: TokenStore,
    accounts: ReadingAccounts,
    sample: Sample | None,
    folder: Path,
    on_event: Listener,
) -> tuple[Outcome, ...]:
    on_event(Progress(Stage.PLAN, 0, len(runs), "plans", 0))
    outcomes = []
    for run in runs:
        rules = plan_rules(run, job.shape)
        outcome = _outcome(rules, accounts, make_plan(accounts.units, store, rules, folder, lambda _: None))
        outcomes.append(outcome if sample is None else _scaled(outcome, sample, rules))
        shutil.rmtree(folder)  # the next one may need the room
        on_event(Progress(Stage.PLAN, len(outcomes), len(runs), "plans", 0))
    return tuple(outcomes)


def _outcome(rules: PlanRules, accounts: ReadingAccounts, made: Plan) -> Outcome:
    """What ``pack`` would make of a plan; numbers of 0 where it would stop instead."""
    refusal = accounts.refusal_of(made, rules)
    if refusal is not None:
        return Outcome(
            strategy=rules.strategy.name, max_length=rules.max_length, overlong=rules.overlong, refused=refusal
        )
    counts = made.counts
    cost = sum(length * length * count for length, count in counts.segment_lengths.items())
    room = made.packs * rules.max_length
    segment_lengths = Histogram.from_counts(counts.segment_lengths)
    by_segments = np.zeros(counts.most_segments + 1, np.int64)
    for segments in made.segments_of_packs():
        by_segments += np.bincount(segments, minlength=len(by_segments))
    return Outcome(
        strategy=rules.strategy.name,
        max_length=rules.max_length,
        overlong=rules.overlong,
        refused="",
        packs=made.packs,
        lower_bound_packs=made.lower_bound_packs,
        fill=counts.tokens / room,
        documents=counts.documents,
        documents_cut=counts.documents - counts.whole_documents,
        documents_left_out=accounts.records - accounts.bad_records - counts.documents,
        tokens=counts.tokens,
        tokens_lost=accounts.tokens - counts.tokens,
        segments=counts.segments,
        segments_per_pack=SegmentsPerPack.of(by_segments),
        attention_cost=cost,
        attention_cost_share=cost / (room * rules.max_length),
        only_halves=only_halves(segment_lengths, made.lower_bound_packs, made.packs, rules.max_length),
    )


def _scaled(outcome: Outcome, sample: Sample, rules: PlanRules) -> Outcome:
    """What the outcome of a sample says of all records."""
    if outcome.refused:
        return outcome
    found = estimate(sample, rules)
    scale = sample.population / sample.records
    counted = ("documents", "documents_cut", "documents_left_out", "tokens", "tokens_lost", "segments")
    more = {name: round(getattr(outcome, name) * scale) for name in counted}
    packs, cost = math.ceil(found.packs), round(outcome.attention_cost * scale)
    return replace(
        outcome,
        **more,
        packs=packs,
        lower_bound_packs=min(packs, math.ceil(outcome.lower_bound_packs * scale)),
        fill=found.fill,
        attention_cost=cost,
        attention_cost_share=cost / (found.packs * rules.max_length**2),
        packs_interval=found.packs_interval,
        fill_interval=found.fill_interval,
    )
