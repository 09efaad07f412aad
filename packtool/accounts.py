"""The accounts of reading: what every source holds, what did not become a document, and when that stops the run.

Takes stored units in source order, so the first fault in the order of the sources is the one that is told,
whatever the workers.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from packtool.errors import BAD_RECORD_REASONS, UNRENDERED_REASONS, BadData, bad_record_message
from packtool.hashing import odd_mix
from packtool.manifest import CONTROL_CHARACTERS, SourceEntry
from packtool.planning import PlacedUnit, Plan, PlanRules
from packtool.rejects import Reject
from packtool.source_ranges import SourceRanges
from packtool.sources import Source, shown
from packtool.token_store import TokenStore
from packtool.tokenizing import TokenizedUnit

EARLY_RECORDS = 1_000
"""Records after which a template that refuses too many stops the run, long before its end."""


@dataclass(slots=True)
class _SourceAccount:
    rows: int = 0
    records: int = 0
    documents: int = 0
    tokens: int = 0
    checksum: int = 0
    digests: "hashlib._Hash" = field(default_factory=hashlib.sha256)


class ReadingAccounts:
    """Adds up units as they come in, in source order."""

    def __init__(
        self,
        sources: Sequence[Source],
        store: TokenStore,
        *,
        stop_at_bad_record: bool,
        max_left_out: float,
        max_bad_records: str | None = None,
    ) -> None:
        """Account for ``sources``.

        Args:
            sources: in order.
            store: where their units are.
            stop_at_bad_record: whether the first one ends the run.
            max_left_out: percent of records that a template may refuse.
            max_bad_records: how many there may be where they do not end it, ``"100"`` or ``"1%"``; None: any number.
        """
        self.units: list[PlacedUnit] = []
        self.rejected: Counter[str] = Counter()
        self.reused_units = 0
        self.records = 0
        self.documents = 0
        self.tokens = 0
        self.bytes = 0
        self.encoders: set[str] = set()
        self.notes: Counter[str] = Counter()
        self._sources = sources
        self._store = store
        self._accounts = [_SourceAccount() for _ in sources]
        self._stop_at_bad_record = stop_at_bad_record
        self._max_left_out = max_left_out
        self._max_bad_records = max_bad_records
        self._first_bad = ""
        self._rows = 0
        self.first_reject = ""
        """The first record that became no document, for people."""
        self._unrendered = 0
        self._example = ""
        self._early_checked = False

    def add(self, unit: TokenizedUnit) -> None:
        """Account for the next unit in source order.

        Raises:
            BadData: it holds a bad record and those stop the run, or a template refused too many records.
        """
        account, summary = self._accounts[unit.source], unit.summary
        self._judge(unit, first_row=account.rows)
        # What was refused stays in the store: there may be as much of it as there is data.
        self.units.append(PlacedUnit(unit.source, self._rows, replace(summary, rejects=())))
        documents = self._store.documents(summary)
        doc_ids = self._rows + documents.rows.astype(np.int64)
        self._rows += summary.rows
        account.checksum += int(np.sum(odd_mix(doc_ids) * documents.checksums, dtype=np.uint64))
        account.rows += summary.rows
        account.records += summary.records
        account.documents += summary.documents
        account.tokens += summary.tokens
        account.digests.update(summary.digest.encode())
        self.records += summary.records
        self.documents += summary.documents
        self.tokens += summary.tokens
        self.bytes += summary.bytes
        self.reused_units += unit.reused
        self.encoders.add(summary.encoder)
        self.notes.update(summary.notes)

    def finish(self) -> None:
        """Look once more, after the last unit.

        Raises:
            BadData: a template refused too many records.
        """
        self._check_left_out(self.records)
        self._check_bad_records(self.records)

    @property
    def bad_records(self) -> int:
        """Records that could not be read or had the wrong shape."""
        return sum(count for reason, count in self.rejected.items() if reason in BAD_RECORD_REASONS)

    def entries(self) -> tuple[SourceEntry, ...]:
        """The manifest's entries, in order."""
        entries: list[SourceEntry] = []
        first = 0
        for source, account in zip(self._sources, self._accounts, strict=True):
            entries.append(
                SourceEntry(
                    name=recorded_name(source.name),
                    kind=str(source.kind),
                    compression=str(source.compression),
                    first=first,
                    rows=account.rows,
                    records=account.records,
                    documents=account.documents,
                    tokens=account.tokens,
                    checksum=account.checksum % 2**64,
                    digest=account.digests.hexdigest(),
                )
            )
            first += account.rows
        return tuple(entries)

    def rejects(self) -> Iterator[Reject]:
        """A row for every record that did not become a document, by doc id.

        Raises:
            PacktoolError: the token store was changed since the units were added.
        """
        entries = self.entries()
        for unit in self.units:
            if unit.summary.records == unit.summary.documents:
                continue
            source = entries[unit.source]
            for reject in self._store.rejects(unit.summary):
                doc_id = unit.first_row + reject.row
                yield Reject(source.name, doc_id - source.first + 1, doc_id, 0, 0, 0, reject.reason, reject.detail)

    def place(self, doc_id: int) -> tuple[Source, int]:
        """The source of a document and its 1-based line there."""
        source, line = SourceRanges(self.entries()).place(doc_id)
        return self._sources[source], line

    def refusal_of(self, plan: Plan, rules: PlanRules) -> str | None:
        """Why no dataset is made of a plan, in one line; None where one is."""
        if rules.overlong == "error" and plan.first_overlong is not None:
            doc_id, tokens = plan.first_overlong
            source, line = self.place(doc_id)
            return (
                f"{shown(source.path)}:{line}: overlong: {tokens:,} tokens, over --max-length {rules.max_length:,}; "
                "choose what becomes of such documents with --overlong"
            )
        if plan.packs:
            return None
        reasons = self.rejected + plan.counts.cut_rows
        told = ", ".join(f"{count:,} {reason}" for reason, count in reasons.most_common())
        records = f"{self.records:,} record{'' if self.records == 1 else 's'}"
        first = f" ({self.first_reject})" if self.first_reject else ""
        return f"nothing left to pack: {records} read" + (f", left out: {told}{first}" if told else "")

    def _judge(self, unit: TokenizedUnit, first_row: int) -> None:
        name = shown(self._sources[unit.source].path)
        early = EARLY_RECORDS - self.records  # records of this unit that are among the first ones of the run
        for reject in unit.summary.rejects:
            if reject.record >= early:
                self._check_early()
            self.rejected[reject.reason] += 1
            row = first_row + reject.row
            if reject.reason in BAD_RECORD_REASONS and self._stop_at_bad_record:
                raise BadData(bad_record_message(name, row, reject.reason, reject.detail))
            told = f"{name}:{row + 1}: {reject.reason}: {reject.detail}"
            if reject.reason in BAD_RECORD_REASONS:
                self._first_bad = self._first_bad or told
                self._check_bad_records(None)
            self.first_reject = self.first_reject or told
            if reject.reason in UNRENDERED_REASONS:
                self._unrendered += 1
                self._example = self._example or told
        if unit.summary.records >= early:
            self._check_early()

    def _check_early(self) -> None:
        if not self._early_checked:
            self._early_checked = True
            self._check_left_out(EARLY_RECORDS)
            self._check_bad_records(EARLY_RECORDS)

    def _check_bad_records(self, records: int | None) -> None:
        """Look whether there are too many in number, and of so many ``records``, where those are known, in percent."""
        bound = self._max_bad_records
        if bound is None:
            return
        bad = self.bad_records
        if not bound.endswith("%"):
            too_many, of = bad > int(bound), ""
        elif records is not None:
            too_many, of = bad * 100 > float(bound[:-1]) * records, f" of the first {records:,} records"
        else:
            return
        if too_many:
            raise BadData(
                f"{self._first_bad} ({bad:,} bad records{of}, more than --max-bad-records {bound}; "
                "mend them, or raise it)"
            )

    def _check_left_out(self, records: int) -> None:
        if self._unrendered * 100 > self._max_left_out * records:
            raise BadData(
                f"{self._example} ({self._unrendered:,} of the first {records:,} records are left out like this, "
                f"more than --max-left-out {self._max_left_out:g}%; mend them, or raise it)"
            )


def recorded_name(name: str) -> str:
    """A source's name as the dataset has it: with escapes for the control characters that a file name may hold."""
    return re.sub(CONTROL_CHARACTERS, lambda match: f"\\x{ord(match[0]):02x}", name)
