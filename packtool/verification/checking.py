"""Reads a packed dataset as a stranger would and says, check by check, whether it keeps the data contract.

Takes the folder, and the sources if there are any, and trusts nothing in it, the manifest included. Shards are read
once; what says something of whole documents goes over sorted files on disk, so memory does not grow with the data.
"""

import os
import secrets
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

from packtool.config import usable_cpus
from packtool.errors import BadData, Misuse
from packtool.executor import Workers
from packtool.job import Job
from packtool.manifest import MANIFEST_NAME, Manifest, read_manifest
from packtool.planning import PlanRules
from packtool.progress import Listener, Progress, Stage, nobody
from packtool.scratch import scratch_folder
from packtool.source_ranges import SourceRanges
from packtool.verification.conservation import (
    DocumentTally,
    PackTally,
    RejectTally,
    Total,
    totals,
)
from packtool.verification.documents import Documents, check_documents, check_pieces, tally_documents
from packtool.verification.kept_tokenizer import check_tokenizer
from packtool.verification.listing import check_card, check_listing, check_stray_files
from packtool.verification.origin import Origin, OriginCheck, settle_again
from packtool.verification.places import Places
from packtool.verification.reading import shard_firsts
from packtool.verification.reject_rows import read_rows
from packtool.verification.replanning import Replanner
from packtool.verification.report import Finding, Findings, VerifyReport
from packtool.verification.rules import plan_rules, text_rules
from packtool.verification.shard_pass import ShardOutcome, ShardTask, look_at_shard
from packtool.verification.stretches import Order, Spill, Stretches, merged

_BYTES_FOR_PROCESSES = 64 << 20
"""Of shards: less is read before another process has started."""


def verify(
    path: str | PathLike[str],
    source: str | PathLike[str] | Sequence[str | PathLike[str]] | None = None,
    *,
    sample: int | None = None,
    seed: int = 0,
    chat_template: str | None = None,
    prompt_template: str | PathLike[str] | None = None,
    workers: int | None = None,
    on_event: Listener = nobody,
) -> VerifyReport:
    """Check the packed dataset in the folder ``path``.

    Args:
        path: the dataset's folder.
        source: what it was packed from, one or several, as given to ``pack``: then that is rendered and tokenized
            again and compared, token by token and label by label.
        sample: compare only about so many records of the sources.
        seed: which ones.
        chat_template: with conversations that were not rendered by the tokenizer's own template, the one that was.
        prompt_template: likewise for prompts.
        workers: processes at most; None: the CPUs this process may use.
        on_event: told how far it is.

    Returns:
        The report; an unsound dataset, or another source, is a report that is not ok, never an exception.

    Raises:
        BadData: there is no dataset there at all (no folder, or no manifest in it), or a source may not be read.
        Misuse: no source is given, or one is not there; a template is needed, or is not the one.
        PacktoolError: what is sorted on disk has no room in the folder for temporary files.
    """
    folder = Path(path)
    if sample is not None and (source is None or sample < 1):
        raise Misuse("--sample takes a number of at least 1, and is of the records of --source; give that, too")
    origin = None
    if source is not None:
        sources = [source] if isinstance(source, str | PathLike) else source
        if not sources:
            raise Misuse("--source: none is given; give what the dataset was packed from")
        origin = Origin(
            sources=tuple(os.fspath(one) for one in sources),
            sample=sample,
            seed=seed,
            chat_template=chat_template,
            prompt_template=None if prompt_template is None else Path(prompt_template),
            workers=workers,
        )
    findings = Findings()
    try:
        manifest = read_manifest(folder)
    except BadData as error:
        if not (folder / MANIFEST_NAME).is_file():
            raise
        findings["manifest_files"].fault(str(error))
        findings.miss_all_but("the manifest cannot be used", "manifest_files")
        return _report(folder, findings, None, 0, with_source=origin is not None)
    with scratch_folder() as work, Workers(usable_cpus() if workers is None else workers) as processes:
        return _Verification(folder, manifest, findings, work, origin, processes, on_event).run()


@dataclass(frozen=True, slots=True)
class _Again:
    """What a comparison with the sources is made by."""

    origin: Origin
    job: Job
    rules: PlanRules
    key: int
    """Of the checksums of tokens and labels."""


class _Verification:
    """One verification: what its steps share."""

    def __init__(
        self,
        folder: Path,
        manifest: Manifest,
        findings: Findings,
        work: Path,
        origin: Origin | None,
        workers: Workers,
        on_event: Listener,
    ) -> None:
        self._folder = folder
        self._manifest = manifest
        self._findings = findings
        self._work = work
        self._origin = origin
        self._workers = workers
        self._on_event = on_event
        self._ranges = SourceRanges(manifest.sources)

    def run(self) -> VerifyReport:
        folder, manifest, findings = self._folder, self._manifest, self._findings
        check_listing(findings["manifest_files"], folder, manifest)
        check_stray_files(findings["stray_files"], folder, manifest)
        check_card(findings["card"], folder, manifest)
        rules = plan_rules(findings["manifest"], manifest)
        check_tokenizer(findings["tokenizer"], folder, manifest)
        again = self._again(rules)
        key = None if again is None else again.key
        # The order of the plan, and that of the sources where it is another one.
        orders = [Order(rules.seed if rules is not None and rules.shuffle else None)]
        if again is not None and orders[0].seed is not None:
            orders.append(Order(None))
        firsts = shard_firsts(folder, manifest)
        places = Places([shard.name for shard in manifest.shards], firsts)
        rejects = RejectTally(len(manifest.sources))
        spills = tuple(Spill(self._work, f"rejects-{number}", order) for number, order in enumerate(orders))
        read_rows(findings, folder, manifest, self._ranges, rejects, spills)
        for spill in spills:
            spill.flush()
        runs = [spill.runs for spill in spills]
        tallies, packs_read = self._look_at_shards(firsts, tuple(orders), key, runs)
        whole = PackTally(self._ranges, len(manifest.sources))
        for tally in tallies:
            whole.add_tally(tally)
        documents = self._look_at_documents(places, rules, rejects, whole, runs[0], orders[0])
        _check_totals(findings["conservation"], totals(manifest, rejects, tallies, whole, documents))
        if again is not None:
            self._compare_with_sources(again, places, merged(runs[-1], orders[-1]))
        return _report(folder, findings, whole, packs_read, with_source=self._origin is not None)

    def _again(self, rules: PlanRules | None) -> _Again | None:
        """What to compare the dataset with its sources by; None where that is not asked for, or cannot be done."""
        if self._origin is None:
            return None
        finding = self._findings["source"]
        if rules is None:
            finding.miss("the manifest's options are not complete, see there")
            return None
        if not self._findings["tokenizer"].check().ok:
            finding.miss("the tokenizer in the folder is not the one that was used, see there")
            return None
        job = settle_again(self._folder, self._manifest, self._origin)
        if isinstance(job, str):
            finding.fault(job)
            return None
        return _Again(self._origin, job, rules, secrets.randbits(64) | 1)

    def _compare_with_sources(self, again: _Again, places: Places, blocks: Iterator[Stretches]) -> None:
        finding = self._findings["source"]
        if self._findings["documents"].faults:
            finding.miss("documents are not whole, see there")
        if not finding.missed:
            check = OriginCheck(finding, self._folder, self._manifest, again.rules, places, again.key)
            check.run(again.job, again.origin, blocks, self._workers, self._on_event)

    def _look_at_shards(
        self, firsts: Sequence[int], orders: tuple[Order, ...], key: int | None, runs: list[list[Path]]
    ) -> tuple[list[PackTally], int]:
        """The shards' tallies and how many packs were read; adds the files of sorted stretches to ``runs``."""
        manifest = self._manifest
        text = text_rules(manifest)
        tasks = (
            ShardTask(self._folder, manifest, index, firsts[index], text, self._work, orders, key)
            for index in range(len(manifest.shards))
        )
        tallies: list[PackTally] = []
        packs_read = tokens = 0
        self._on_event(Progress(Stage.CHECK, 0, firsts[-1], "packs", 0))
        with closing(self._outcomes(tasks)) as outcomes:
            for outcome in outcomes:
                self._take(outcome, runs)
                tallies.append(outcome.tally)
                packs_read += outcome.packs_read
                tokens += outcome.tally.tokens
                self._on_event(Progress(Stage.CHECK, firsts[len(tallies)], firsts[-1], "packs", tokens))
        return tallies, packs_read

    def _outcomes(self, tasks: Iterator[ShardTask]) -> Generator[ShardOutcome, None, None]:
        if self._bytes() < _BYTES_FOR_PROCESSES:
            yield from map(look_at_shard, tasks)
        else:
            yield from self._workers.run_in_order(look_at_shard, tasks)

    def _take(self, outcome: ShardOutcome, runs: list[list[Path]]) -> None:
        self._findings.add(outcome.findings)
        for files, more in zip(runs, outcome.runs, strict=True):
            files += more

    def _bytes(self) -> int:
        """Of the shards, as far as they are there."""
        size = 0
        for shard in self._manifest.shards:
            try:
                size += (self._folder / shard.name).lstat().st_size
            except OSError:
                continue
        return size

    def _look_at_documents(
        self,
        places: Places,
        rules: PlanRules | None,
        rejects: RejectTally,
        whole: PackTally,
        runs: Sequence[Path],
        order: Order,
    ) -> DocumentTally:
        findings = self._findings
        tally = DocumentTally()
        if findings["pieces"].missed:
            return tally  # with packs or rejects that could not be read, hardly a document is whole
        replanner = None
        if rules is None:
            findings.miss("the manifest's options are not complete, see there", "pieces", "packing")
        else:
            tokens = int(rejects.sums.tokens.sum() + whole.sums.tokens.sum())
            documents = int(rejects.sums.documents.sum() + whole.sums.documents.sum())
            replanner = Replanner(findings["packing"], places, rules, tokens, documents)
        for block in merged(runs, order):
            found = Documents.of(block)
            check_documents(findings, places, found)
            tally_documents(tally, found)
            if rules is not None and replanner is not None:
                check_pieces(findings, places, rules, found)
                replanner.add(found)
        if rules is not None and replanner is not None:
            replanner.finish()
            if not rules.is_stream:
                _check_groups(findings["packing"], self._manifest, replanner.groups)
        return tally


def _check_groups(finding: Finding, manifest: Manifest, groups: int) -> None:
    finding.checked += 1
    if manifest.groups != groups and not finding.faults:
        finding.fault(f"{MANIFEST_NAME}: groups is {manifest.groups}; found {groups}")


def _check_totals(finding: Finding, found: Iterator[Total]) -> None:
    if finding.missed:
        return
    for total in found:
        finding.checked += 1
        if not total.agrees:
            finding.fault(f"{MANIFEST_NAME}: {_difference(total)}")


def _difference(total: Total) -> str:
    what, stated, found = total.what, total.stated, total.found
    if isinstance(stated, dict) and isinstance(found, dict):
        key = next(key for key in sorted({*stated, *found}) if stated.get(key) != found.get(key))
        what, stated, found = f"{what}[{key!r:.60}]", stated.get(key, 0), found.get(key, 0)
    return f"{what} is {stated}; found {found}"


def _report(
    folder: Path, findings: Findings, tally: PackTally | None, packs_read: int, *, with_source: bool
) -> VerifyReport:
    checks = findings.checks(with_source=with_source)
    return VerifyReport(
        path=str(folder),
        ok=all(check.ok for check in checks),
        packs=packs_read,
        segments=tally.segments if tally else 0,
        tokens=tally.tokens if tally else 0,
        checks=checks,
    )
