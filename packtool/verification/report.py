"""What verification finds: a finding a check while it runs, and the report at its end. Plain values, no files.

Findings of several shards add up, so that shards may be looked at in any process.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bools = NDArray[np.bool_]

CHECKS = {
    "manifest_files": "every listed file is there, in the folder, with its size, sha256 and content digest",
    "stray_files": "nothing else lies in the folder",
    "card": "the dataset card lists the shards, all of them, in their order, and nothing else",
    "manifest": "the options are complete, go together, and say what the manifest says elsewhere",
    "tokenizer": "the tokenizer in the folder is the one that the manifest describes",
    "schema": "the six columns, their types, no nulls, lists of even length, row groups not too large",
    "sums": "segments of at least one token that sum to the pack, which is no longer than max_length",
    "positions": "0, 1, 2, ... from the start of every segment",
    "labels": "the token itself or -100, and a trained token in every pack",
    "segment_starts": "-100 on the first token of every segment",
    "training": "a trained token in every segment but those of a stream; all of plain text trains",
    "padding": "only where asked for: one segment, the last, of the pad token, without labels",
    "vocabulary": "every id is in the tokenizer's vocabulary",
    "text_ends": "where BOS and EOS are put around texts, every text has them",
    "documents": "each is whole: pieces and rejects that follow on each other from its first token, none twice",
    "pieces": "documents are kept whole, cut off, split or left out as the options say",
    "packing": "the packs are those that the strategy makes of these documents, in its order",
    "conservation": "every token of every source is in a pack or a reject, once, and all totals agree",
    "source": "the sources, rendered and tokenized again, give these tokens and labels",
}
"""Name of each check, in the order they are reported, and what it demands. ``source`` is made only if asked for."""


@dataclass(frozen=True, slots=True)
class Check:
    """What one check found."""

    name: str
    """A key of ``CHECKS``."""
    ok: bool
    checked: int
    """How many things were looked at: files, packs, segments, tokens or totals, as the check has it."""
    faults: int
    """How many of them were wrong. 0 in a check that is not ok: something could not be looked at."""
    detail: str
    """Empty if ok; else the first fault and where it is, or ``not checked: `` and why."""


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The outcome of every check that was made, in the order of ``CHECKS``."""

    path: str
    ok: bool
    """Whether every check is."""
    packs: int
    """Packs that were read."""
    segments: int
    """Segments in them, without padding and without packs whose lengths do not fit them."""
    tokens: int
    """Tokens in these segments."""
    checks: tuple[Check, ...]

    def to_json(self) -> dict[str, Any]:
        """The report as plain values, under the names above."""
        return {**asdict(self), "checks": [asdict(check) for check in self.checks]}


@dataclass(slots=True)
class Finding:
    """What one check has found so far."""

    name: str
    checked: int = 0
    faults: int = 0
    first_fault: str = ""
    missed: str = ""

    def fault(self, detail: str, count: int = 1) -> None:
        """Note ``count`` faults, of which ``detail`` is the first."""
        self.first_fault = self.first_fault or detail
        self.faults += count

    def fault_where(self, wrong: Bools, describe: Callable[[int], str]) -> None:
        """Note a fault for each thing that is ``wrong``; ``describe`` gives the detail of the first, by index."""
        if wrong.any():
            self.fault(describe(int(np.argmax(wrong))), int(np.count_nonzero(wrong)))

    def miss(self, why: str) -> None:
        """Note that something could not be looked at."""
        self.missed = self.missed or why

    def add(self, other: "Finding") -> None:
        """Take in what the same check found further on."""
        self.checked += other.checked
        self.faults += other.faults
        self.first_fault = self.first_fault or other.first_fault
        self.missed = self.missed or other.missed

    def check(self) -> Check:
        """What it comes to."""
        detail = self.first_fault or (f"not checked: {self.missed}" if self.missed else "")
        return Check(self.name, ok=not detail, checked=self.checked, faults=self.faults, detail=detail)


class Findings:
    """A finding for every check."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._by_name = {name: Finding(name) for name in CHECKS}

    def __getitem__(self, name: str) -> Finding:
        return self._by_name[name]

    def add(self, other: "Findings") -> None:
        """Take in what was found further on."""
        for name, finding in self._by_name.items():
            finding.add(other[name])

    def miss(self, why: str, *names: str) -> None:
        """Note for the checks ``names`` that something could not be looked at."""
        for name in names:
            self._by_name[name].miss(why)

    def miss_packs(self, why: str) -> None:
        """The same for every check that needs the packs' content."""
        self.miss(why, *_OF_PACKS)

    def miss_segments(self, why: str) -> None:
        """The same for every check that needs to know where segments lie."""
        self.miss(why, *_OF_SEGMENTS)

    def miss_all_but(self, why: str, name: str) -> None:
        """The same for every check but ``name``."""
        self.miss(why, *(other for other in CHECKS if other != name))

    def checks(self, *, with_source: bool) -> tuple[Check, ...]:
        """What they come to, in the order of ``CHECKS``."""
        made = (finding for name, finding in self._by_name.items() if with_source or name != "source")
        return tuple(finding.check() for finding in made)


_OF_DOCUMENTS = ("text_ends", "documents", "pieces", "packing", "conservation", "source")
_OF_SEGMENTS = ("positions", "segment_starts", "training", "padding", *_OF_DOCUMENTS)
_OF_PACKS = ("sums", "labels", "vocabulary", *_OF_SEGMENTS)
