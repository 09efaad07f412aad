"""Reads rejects.jsonl row by row: is each one right in itself and after the row before it?

Gives the rows on as stretches and sums; what they are part of is for others.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from packtool.errors import BAD_RECORD_REASONS, LEFT_OUT_REASONS, UNRENDERED_REASONS, BadData
from packtool.manifest import REJECTS_NAME, Manifest, listed_file
from packtool.rejects import Reject, read_rejects
from packtool.source_ranges import SourceRanges
from packtool.verification.conservation import RejectTally
from packtool.verification.report import Findings
from packtool.verification.stretches import REASONS, STRETCH, Spill

_TOKENLESS_REASONS = BAD_RECORD_REASONS | UNRENDERED_REASONS | {"empty"}
_TOKEN_REASONS = frozenset({"overlong", "truncated"})
_CODES = {reason: code for code, reason in enumerate(REASONS)}
_ROWS = 4096
"""Rows that are handed on at a time."""


def read_rows(
    findings: Findings,
    folder: Path,
    manifest: Manifest,
    ranges: SourceRanges,
    tally: RejectTally,
    spills: Sequence[Spill],
) -> None:
    """Read all rows, as far as they can be read; a fault is a finding.

    Args:
        findings: where faults go, and what could not be looked at.
        folder: the dataset's.
        manifest: the dataset's.
        ranges: its sources.
        tally: adds up the rows.
        spills: take them as stretches.
    """
    documents = findings["documents"]
    path = folder / REJECTS_NAME
    previous: Reject | None = None
    held: list[tuple[int, int, Reject]] = []
    number = 0
    try:
        for number, reject in enumerate(read_rejects(listed_file(folder, REJECTS_NAME)), 1):
            source, line = ranges.place(reject.doc_id)
            wrong = _row_fault(manifest, source, line, previous, reject)
            if wrong:
                documents.fault(f"{path}:{number}: {wrong}")
            held.append((number, source, reject))
            if len(held) == _ROWS:
                _hand_on(held, tally, spills)
                held = []
            previous = reject
    except BadData as error:
        documents.fault(str(error))
        findings.miss(f"{path} cannot be read to its end", "conservation", "pieces", "packing", "source")
    _hand_on(held, tally, spills)
    documents.checked += number


def _hand_on(rows: list[tuple[int, int, Reject]], tally: RejectTally, spills: Sequence[Spill]) -> None:
    """Rows, each with its number and the index of its source."""
    if not rows:
        return
    stretches = np.zeros(len(rows), STRETCH)
    stretches["doc_id"] = [row.doc_id for _, _, row in rows]
    stretches["pack"] = [-number for number, _, _ in rows]
    stretches["offset"] = [row.offset for _, _, row in rows]
    stretches["length"] = [row.tokens for _, _, row in rows]
    stretches["ids"] = np.array([row.checksum for _, _, row in rows], dtype=np.uint64)
    stretches["reason"] = [_CODES.get(row.reason, -1) for _, _, row in rows]
    stretches["ends_text"] = True
    reasons = [row.reason if row.reason in _CODES else "unknown" for _, _, row in rows]
    tally.add(reasons, np.array([source for _, source, _ in rows], dtype=np.int64), stretches)
    for spill in spills:
        spill.add(stretches)


def _row_fault(manifest: Manifest, source: int, line: int, previous: Reject | None, reject: Reject) -> str:
    """What is wrong with a row, given the row before it; empty if nothing."""
    if reject.reason not in BAD_RECORD_REASONS and reject.reason not in LEFT_OUT_REASONS:
        return f"unknown reason {reject.reason!r:.60}"
    if source < 0:
        return f"doc_id {reject.doc_id} belongs to no source"
    entry = manifest.sources[source]
    if (reject.source, reject.line) != (entry.name, line):
        return f"doc_id {reject.doc_id} is line {line} of {entry.name!r}, not {reject.line} of {reject.source!r:.60}"
    if reject.tokens == 0 and (reject.offset or reject.checksum or reject.reason in _TOKEN_REASONS):
        return f"no tokens, but offset {reject.offset}, checksum {reject.checksum}, reason {reject.reason}"
    if reject.tokens > 0 and reject.reason in _TOKENLESS_REASONS:
        return f"{reject.tokens} tokens, but the reason {reject.reason} is given before there are any"
    if previous is None or previous.doc_id < reject.doc_id:
        return ""
    if (previous.doc_id, previous.offset) >= (reject.doc_id, reject.offset):
        return "out of order, or listed twice; rows are sorted by doc_id and offset"
    if not previous.tokens or not reject.tokens or previous.offset + previous.tokens > reject.offset:
        return f"overlaps the row before it, of the same document {reject.doc_id}"
    return ""
