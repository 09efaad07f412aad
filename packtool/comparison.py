"""What packing would make of the same records with other strategies and lengths: options in, numbers and advice out.

Tokenizes once, plans by the rules of ``pack`` itself, and writes no dataset.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from packtool.accounts import ReadingAccounts
from packtool.advice import Advice, advise
from packtool.config import PackConfig, PlanConfig, StrategyName
from packtool.errors import BadData, PacktoolError
from packtool.intake import tokenize
from packtool.job import Job, check_strategy, default_strategy, plan_rules, settle
from packtool.outcome import Outcome
from packtool.packing import STRATEGIES, Histogram, only_halves
from packtool.planning import Plan, PlanRules, make_plan
from packtool.progress import Listener, Notice, Progress, Stage, nobody
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
    runs = [config.pack_config(name, length) for length in config.max_length for name in _strategies(config)]
    job = settle(runs[0], {})
    for warning in job.warnings:
        on_event(Notice(warning, warning=True))
    with _Workshop() as folder:
        store = TokenStore(config.cache_dir or folder / "store", job.recipe.key)
        accounts = tokenize(job, store, on_event)
        outcomes = _outcomes(job, runs, store, accounts, folder / "plan", on_event)
    if all(outcome.refused for outcome in outcomes):
        raise BadData(outcomes[0].refused)
    return Comparison(
        format=str(job.shape.format),
        sampled=None,
        records=accounts.records,
        bad_records=accounts.bad_records,
        documents=accounts.documents,
        tokens=accounts.tokens,
        outcomes=outcomes,
        advice=advise(outcomes, job.shape.format, default_strategy(job.shape), whole=job.shape.chooses_tokens),
    )


def _strategies(config: PlanConfig) -> tuple[StrategyName, ...]:
    if config.strategy is not None:
        for name in config.strategy:
            check_strategy(config, name)
        return config.strategy
    fitting = (strategy for strategy in STRATEGIES.values() if strategy.takes(config.overlong))
    return tuple(StrategyName(each.name) for each in fitting if each.shuffles or not config.shuffle)


class _Workshop:
    """A temporary folder that goes however the block ends; its faults are said to be its own."""

    def __enter__(self) -> Path:
        try:
            self._folder = Path(tempfile.mkdtemp(prefix="packtool-plan-"))
        except OSError as error:
            raise PacktoolError(f"no temporary folder can be made: {error.strerror}; set TMPDIR to one") from None
        return self._folder

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)
        if isinstance(error, OSError) and str(error.filename or "").startswith(str(self._folder)):
            raise PacktoolError(
                f"{self._folder}: {error.strerror or error}; set TMPDIR to a roomier place, or give --cache-dir"
            ) from None


def _outcomes(
    job: Job,
    runs: Sequence[PackConfig],
    store: TokenStore,
    accounts: ReadingAccounts,
    folder: Path,
    on_event: Listener,
) -> tuple[Outcome, ...]:
    on_event(Progress(Stage.PLAN, 0, len(runs), "plans", 0))
    outcomes = []
    for run in runs:
        rules = plan_rules(run, job.shape)
        outcomes.append(_outcome(rules, accounts, make_plan(accounts.units, store, rules, folder, lambda _: None)))
        shutil.rmtree(folder)  # the next one may need the room
        on_event(Progress(Stage.PLAN, len(outcomes), len(runs), "plans", 0))
    return tuple(outcomes)


def _outcome(rules: PlanRules, accounts: ReadingAccounts, made: Plan) -> Outcome:
    """What ``pack`` would make of a plan; numbers of 0 where it would stop instead."""
    refusal = accounts.refusal_of(made, rules)
    if refusal is not None:
        return Outcome.refusing(rules.strategy.name, rules.max_length, rules.overlong, refusal)
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
        only_halves=only_halves(segment_lengths, made.lower_bound_packs, rules.max_length),
    )
