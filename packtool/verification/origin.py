"""A dataset held against its sources: rendered and tokenized again, and compared token by token, label by label.

The order of the sources is that of the doc ids, so both sides are read once, side by side. Stretches are compared
by checksums under a key that nobody knew before; where two differ, the pack is read again to say where.
"""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packtool.accounts import recorded_name
from packtool.config import FormatName, PackConfig
from packtool.contract import IGNORED
from packtool.errors import BadData, Misuse, PacktoolError, printable
from packtool.executor import Workers
from packtool.formats import SHAPES
from packtool.hashing import token_checksums
from packtool.intake import units_of
from packtool.job import CHAT_OPTIONS, Job, chat_template_digest, prompt_template_digest, settle
from packtool.manifest import MANIFEST_NAME, TOKENIZER_FOLDER, Manifest, SourceEntry, listed_file
from packtool.packing import Cut, trained_in
from packtool.planning import PlanRules
from packtool.progress import Listener, Progress, Stage
from packtool.rendering.prompt_completion import read_template
from packtool.shards import Int32s, Int64s, open_shard, read_row_group
from packtool.sources import find_sources, shown
from packtool.tokenizer import chat_templates, find_tokenizer
from packtool.verification.documents import Documents
from packtool.verification.places import Places
from packtool.verification.rendering_again import UnitAgain, UnitAgainTask, make_unit_again
from packtool.verification.report import Finding
from packtool.verification.stretches import REASONS, STRETCH, Stretches

_NOTHING_TO_TRAIN = REASONS.index("nothing_to_train")
_REASON_OF_CUT = np.array([0, *(REASONS.index(cut.name) for cut in Cut)], dtype=np.int32)
"""For each code of a ``Cut``, the index into ``REASONS``."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the user says a dataset was made from."""

    sources: tuple[str, ...]
    sample: int | None = None
    """About so many records, chosen by ``seed``; None: all."""
    seed: int = 0
    chat_template: str | None = None
    """Where it was not the tokenizer's own."""
    prompt_template: Path | None = None
    workers: int | None = None


def settle_again(folder: Path, manifest: Manifest, origin: Origin) -> Job | str:
    """The job that made the dataset, from the manifest and the given sources; or why there is none such.

    Raises:
        Misuse: a source is not there, or the template that it was made with is needed and not given, or not that one.
        BadData: a source may not be read.
    """
    find_sources(origin.sources)
    _check_template(folder, manifest, origin)
    why = ""
    # The manifest has the format that was found, not the one that was asked for. Some records, such as Alpaca as
    # conversations, are of it only by name; others would by name fit a shape that auto does not look for, too.
    # And where they fit several, --field has named a column of theirs, perhaps by its own name.
    tries = ((manifest.format, ()), (FormatName.AUTO.value, ()), (manifest.format, _required(manifest)))
    for format, named in tries:
        try:
            job = settle(_config(folder, manifest, origin, format, named), manifest.options)
        except PacktoolError as error:
            why = why or f"the sources are not what it was made from: {error}"
            continue
        if job.template_digest != manifest.template_digest:
            option = "--chat-template" if manifest.format == FormatName.MESSAGES else "--prompt-template"
            raise Misuse(f"the dataset was made with a template that is not kept in it; give it with {option} FILE")
        if not (told := _difference(job, manifest)):
            return job
        why = why or f"the sources are not what it was made from: {told}"
    return why


def _required(manifest: Manifest) -> tuple[str, ...]:
    """The fields without which records are not of the shape that was found."""
    fields = manifest.options["field"].keys()
    rules = (rule for rule in SHAPES.values() if rule.format == manifest.format and fields >= set(rule.required))
    return tuple(name for rule in rules for name in rule.required)


def _config(folder: Path, manifest: Manifest, origin: Origin, format: str, named: Sequence[str]) -> PackConfig:
    """The options of ``pack``; ``named`` are fields that are given even where the column has the same name."""
    options, entry = manifest.options, manifest.tokenizer
    values: dict[str, Any] = {
        "sources": origin.sources,
        "output": folder,
        "tokenizer": str((folder / TOKENIZER_FOLDER).absolute()),
        "format": format,
        "field": {name: column for name, column in options["field"].items() if name != column or name in named},
        "on_bad_record": "skip",
        "workers": origin.workers,
    }
    for name in ("max_length", "strategy", "overlong", "shuffle", "seed", "max_segments", "limit", "max_record_bytes"):
        values[name] = options[name]
    if manifest.format in (FormatName.TEXT, FormatName.PROMPT_COMPLETION):
        values["bos"] = "yes" if entry.bos_ids else "no"
        values["eos"] = "no" if entry.eos_id is None else "yes"
        values["eos_token"] = entry.eos
    if manifest.format == FormatName.MESSAGES:
        values |= {name: options[name] for name in CHAT_OPTIONS if options[name] is not None}
        values["chat_template"] = origin.chat_template
    values["prompt_template"] = origin.prompt_template
    return PackConfig.checked({name: value for name, value in values.items() if value is not None})


def _check_template(folder: Path, manifest: Manifest, origin: Origin) -> None:
    """Refuse a template that was given and is not the one, before any record is read."""
    if origin.chat_template is not None:
        option, given, needed = "--chat-template", origin.chat_template, manifest.format == FormatName.MESSAGES
        tokenizer = find_tokenizer(str((folder / TOKENIZER_FOLDER).absolute()))
        digest = chat_template_digest(chat_templates(tokenizer, given)[0])
    elif origin.prompt_template is not None:
        option, given, needed = "--prompt-template", str(origin.prompt_template), manifest.format != FormatName.MESSAGES
        digest = prompt_template_digest(read_template(origin.prompt_template))
    else:
        return
    if not needed or manifest.template_digest is None:
        raise Misuse(f"{option} {given}: the dataset was made without one; leave it out")
    if digest != manifest.template_digest:
        raise Misuse(f"{option} {given}: not the template that the dataset was made with")


def _difference(job: Job, manifest: Manifest) -> str:
    """Which of what changes tokens is another than the manifest says; empty if nothing."""
    chat = CHAT_OPTIONS if job.recipe.chat is not None else ()
    for name in ("format", "field", "limit", "max_record_bytes", *chat):
        now, then = job.options[name], manifest.options[name]
        if now != then:
            return f"{name} is {now!r:.80}, not {then!r:.80}"
    entry = manifest.tokenizer
    if (job.recipe.bos_ids, job.recipe.eos_id) != (entry.bos_ids, entry.eos_id):
        return f"BOS and EOS are {job.recipe.bos_ids} and {job.recipe.eos_id}, not {entry.bos_ids} and {entry.eos_id}"
    if len(job.sources) != len(manifest.sources):
        return f"they are {len(job.sources)}, and it was made from {len(manifest.sources)}"
    return _names_changed_round([recorded_name(source.name) for source in job.sources], manifest)


def _names_changed_round(given: list[str], manifest: Manifest) -> str:
    """What to say where the sources have the names that they had, but one has that of another; else nothing.

    Other names are nothing to say of: files may be moved, and packed again in another way.
    """
    held = [entry.name for entry in manifest.sources]
    if sorted(given) != sorted(held) or given == held:
        return ""
    index = next(index for index, name in enumerate(given) if name != held[index])
    return (
        f"source {index + 1} is {given[index]!r}, and in the manifest {held[index]!r}, which is another one of them; "
        "give them in the order of the manifest, which may have changed their names round"
    )


@dataclass(slots=True)
class _SourceState:
    """What is known of one source so far."""

    finding: Finding
    digest: Any = field(default_factory=hashlib.sha256)
    rows: int = 0


@dataclass(slots=True)
class OriginCheck:
    """Holds sorted stretches against units of the sources."""

    finding: Finding
    folder: Path
    manifest: Manifest
    rules: PlanRules
    places: Places
    key: int
    """Of the stretches' checksums."""

    def run(self, job: Job, origin: Origin, blocks: Iterator[Stretches], workers: Workers, on_event: Listener) -> None:
        """Compare all of it, or a sample; faults are findings.

        Args:
            job: as from ``settle_again``.
            origin: where and how much.
            blocks: all stretches in the order of the doc ids, a document never in two blocks.
            workers: the processes that do it.
            on_event: told how far it is.
        """
        share = 1.0 if origin.sample is None else origin.sample / max(1, self.manifest.records)
        takes_all = share >= 1
        threshold = 2**64 if takes_all else int(share * 2**64)
        tasks = (UnitAgainTask(unit, job.recipe, origin.seed, threshold) for unit in units_of(job))
        states = [_SourceState(Finding(self.finding.name)) for _ in self.manifest.sources]
        stretches = _Cursor(blocks)
        done = 0
        current = 0
        try:
            with closing(workers.run_in_order(make_unit_again, tasks)) as units:
                for unit in units:
                    for index in range(current, unit.source):
                        self._end_source(states[index], index, stretches, whole=takes_all)
                    current = unit.source
                    self._look_at(states[current], unit, stretches)
                    done += unit.bytes
                    on_event(Progress(Stage.COMPARE, done, None, "bytes", 0))
            for index in range(current, len(states)):
                self._end_source(states[index], index, stretches, whole=takes_all)
            on_event(Progress(Stage.COMPARE, done, done, "bytes", 0))
        except BadData as error:
            self.finding.fault(str(error))

    def _end_source(self, state: _SourceState, index: int, stretches: "_Cursor", *, whole: bool) -> None:
        entry = self.manifest.sources[index]
        rest = stretches.take(entry.first + entry.rows)
        if state.digest.hexdigest() != entry.digest:
            # All else that was found follows from it.
            self.finding.fault(f"source {entry.name!r}: is not the file that was packed, or has changed since")
            return
        if whole and len(rest):
            where = self.places.of(rest[0])
            state.finding.fault(f"{where}: document {rest['doc_id'][0]} is not in source {entry.name!r}")
        if state.rows != entry.rows:
            state.finding.fault(f"{MANIFEST_NAME}: source {entry.name!r} has {entry.rows} rows; found {state.rows}")
        self.finding.add(state.finding)

    def _look_at(self, state: _SourceState, unit: UnitAgain, stretches: "_Cursor") -> None:
        entry = self.manifest.sources[unit.source]
        first = entry.first + state.rows
        state.rows += unit.rows
        state.digest.update(unit.digest.encode())
        found = stretches.take(first + unit.rows)
        if len(unit.taken) < unit.records:
            found = found[np.isin(found["doc_id"] - first, unit.taken)]
        state.finding.checked += len(unit.taken)
        _UnitCheck(self, state.finding, entry, unit, first, found).run()


class _Cursor:
    """Stretches in order, taken document by document."""

    def __init__(self, blocks: Iterator[Stretches]) -> None:
        self._blocks = blocks
        self._held: Stretches = np.empty(0, STRETCH)
        self._ended = False

    def take(self, end: int) -> Stretches:
        """Those of doc ids below ``end``."""
        parts = []
        while True:
            stop = int(np.searchsorted(self._held["doc_id"], end))
            parts.append(self._held[:stop])
            self._held = self._held[stop:]
            if len(self._held) or self._ended:
                return np.concatenate(parts)
            block = next(self._blocks, None)
            if block is None:
                self._ended = True
            else:
                self._held = block


class _UnitCheck:
    """Compares the records of one unit with their stretches."""

    def __init__(
        self, check: OriginCheck, finding: Finding, entry: SourceEntry, unit: UnitAgain, first: int, found: Stretches
    ) -> None:
        self._check = check
        self._finding = finding
        self._entry = entry
        self._unit = unit
        self._first = first
        self._found = found

    def run(self) -> None:
        """Refused records first, then documents: is each there, as long as it should be, cut right, and the same?"""
        tokenless = self._found["length"] == 0
        self._check_refused(self._found[tokenless])
        held = self._found[~tokenless]
        expected = self._unit.document_rows + self._first
        known = np.isin(held["doc_id"], expected)
        self._finding.fault_where(~known, lambda at: f"{self._place(held[at])}: the source has no such document")
        missing = ~np.isin(expected, held["doc_id"])
        self._finding.fault_where(
            missing, lambda at: f"{self._line(int(expected[at]))} is a document, and in no pack and no reject"
        )
        held = held[known]
        if not len(held):
            return
        documents = Documents.of(held)
        number = np.searchsorted(expected, held["doc_id"][documents.firsts])  # in the unit, of each document
        whole = self._unit.lengths[number]
        wrong = documents.lengths != whole
        self._finding.fault_where(
            wrong,
            lambda at: (
                f"{self._place(held[documents.firsts[at]])}: the document has {whole[at]} tokens in the source, "
                f"and {documents.lengths[at]} here"
            ),
        )
        self._check_cuts(documents, number)
        owner = number[documents.owner]
        inside = held["offset"].astype(np.int64) + held["length"] <= self._unit.lengths[owner]
        inside &= held["offset"] >= 0
        self._check_tokens(held[inside], owner[inside])

    def _check_refused(self, found: Stretches) -> None:
        expected = dict(zip((self._unit.refused_rows + self._first).tolist(), self._unit.refused_reasons, strict=True))
        for row in found:
            reason = REASONS[row["reason"]]
            wanted = expected.pop(int(row["doc_id"]), None)
            if wanted != reason:
                told = f"its record is {wanted or 'a document, or blank'}"
                self._finding.fault(f"{self._place(row)}: the reason is {reason}, but {told}")
        for doc_id, wanted in expected.items():
            self._finding.fault(f"{self._line(doc_id)} is {wanted}, and not among the rejects")

    def _check_cuts(self, documents: Documents, number: Int64s) -> None:
        """Whether what is left out and cut is what the strategy makes of these documents."""
        held, rules, unit = documents.stretches, self._check.rules, self._unit
        owner = number[documents.owner].astype(np.int32)
        left_out = np.flatnonzero(held["reason"] == _NOTHING_TO_TRAIN)
        trained = trained_in(
            unit.runs, owner[left_out], held["offset"][left_out].copy(), held["length"][left_out].copy()
        )
        self._finding.fault_where(
            trained > 0,
            lambda at: f"{self._place(held[left_out[at]])}: {trained[at]} of its tokens carry loss in the source",
        )
        if rules.strategy.keeps_untrained:
            return
        pieces = rules.strategy.pieces(unit.lengths, unit.runs, rules.max_length, rules.overlong)
        doc = np.concatenate([pieces.doc, pieces.cut_doc])
        rows = np.stack(
            [
                doc,
                np.concatenate([pieces.offset, pieces.cut_offset]),
                np.concatenate([pieces.length, pieces.cut_length]),
                np.concatenate([np.zeros_like(pieces.doc), _REASON_OF_CUT[pieces.cut_reason]]),
            ]
        )
        rows = rows[:, np.lexsort((rows[1], rows[0]))]
        rows = rows[:, np.isin(rows[0], number)]
        here = np.stack([owner, held["offset"], held["length"], held["reason"].astype(np.int32)])
        shared = min(rows.shape[1], here.shape[1])
        wrong = (rows[:, :shared] != here[:, :shared]).any(axis=0)
        if wrong.any() or rows.shape[1] != here.shape[1]:
            at = int(np.argmax(wrong)) if wrong.any() else shared - 1
            document, offset, length, reason = rows[:, at].tolist()
            what = REASONS[reason] or "in a pack"
            line = self._line(int(unit.document_rows[document]) + self._first)
            span = f"tokens {offset} to {offset + length - 1}"
            self._finding.fault(f"{self._place(held[at])}: expected {span} of {line}, {what}")

    def _check_tokens(self, held: Stretches, owner: Int64s) -> None:
        if not len(held):
            return
        unit = self._unit
        starts = np.cumsum(unit.lengths, dtype=np.int64) - unit.lengths
        lengths = held["length"].copy()
        offsets = held["offset"].copy()
        firsts = np.cumsum(lengths, dtype=np.int64) - lengths
        at = np.repeat(starts[owner] + offsets - firsts, lengths) + np.arange(int(lengths.sum(dtype=np.int64)))
        ids = unit.ids[at]
        labels = np.where(self._trained()[at], ids, np.int32(IGNORED))
        labels[firsts] = IGNORED
        rejected = held["reason"] != 0
        key = self._check.key
        keyed = token_checksums(ids, lengths, offsets, key)
        wrong = np.where(rejected, token_checksums(ids, lengths, offsets), keyed) != held["ids"]
        wrong |= ~rejected & (token_checksums(labels, lengths, offsets, key) != held["labels"])

        def describe(index: int) -> str:
            stretch = held[index]
            span = slice(int(firsts[index]), int(firsts[index]) + int(lengths[index]))
            return self._told_difference(stretch, ids[span], labels[span])

        self._finding.fault_where(wrong, describe)

    def _trained(self) -> NDArray[np.bool_]:
        unit = self._unit
        starts = np.repeat(np.cumsum(unit.lengths, dtype=np.int64) - unit.lengths, unit.runs.counts)
        change = np.zeros(len(unit.ids) + 1, dtype=np.int8)
        np.add.at(change, starts + unit.runs.starts, 1)
        np.add.at(change, starts + unit.runs.stops, -1)
        return np.cumsum(change[:-1], dtype=np.int8).view(np.bool_)

    def _told_difference(self, stretch: Any, ids: Int32s, labels: Int32s) -> str:
        """The first token or label that is another, read from the pack."""
        place = self._place(stretch)
        if stretch["pack"] < 0:
            return f"{place}: its checksum is not that of the source's tokens"
        try:
            found_ids, found_labels = _read_segment(self._check.folder, self._check.places, stretch)
        except BadData as error:
            return f"{place}: its tokens are not the source's ({error})"
        for what, found, wanted in (("id", found_ids, ids), ("label", found_labels, labels)):
            differ = np.flatnonzero(found != wanted)
            if len(differ):
                token = int(differ[0])
                return f"{place}: token {token} of it has {what} {found[token]}; the source gives {wanted[token]}"
        return f"{place}: its tokens are not the source's"

    def _place(self, stretch: Any) -> str:
        return f"{self._check.places.of(stretch)} ({self._line(int(stretch['doc_id']))})"

    def _line(self, doc_id: int) -> str:
        return f"{printable(shown(self._entry.name))}:{doc_id - self._entry.first + 1}"


def _read_segment(folder: Path, places: Places, stretch: Any) -> tuple[Int32s, Int32s]:
    """Ids and labels of one segment."""
    shard = int(np.searchsorted(places.firsts, int(stretch["pack"]), side="right")) - 1
    path = listed_file(folder, places.names[shard])
    row = int(stretch["pack"]) - places.firsts[shard]
    with open_shard(path) as file:
        for group in range(file.metadata.num_row_groups):
            rows = file.metadata.row_group(group).num_rows
            if row < rows:
                batch = read_row_group(path, file, group, 0)
                segment = int(batch.pack_segments[:row].sum()) + int(stretch["place"])
                start = int(batch.seq_lengths[:segment].sum(dtype=np.int64))
                span = slice(start, start + int(stretch["length"]))
                return batch.input_ids[span], batch.labels[span]
            row -= rows
    raise BadData(f"{path}: the pack is not there any more")
