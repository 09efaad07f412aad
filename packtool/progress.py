"""What a run tells while it goes: how far a stage is, and things worth a line. Plain values, for any callback."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum


class Stage(StrEnum):
    """The parts of a run, in order; and those of a verification."""

    COUNT = "count"
    """Only where a sample is drawn."""
    TOKENIZE = "tokenize"
    PLAN = "plan"
    WRITE = "write"
    CHECK = "check"
    COMPARE = "compare"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a stage is."""

    stage: Stage
    done: int
    total: int | None
    """In the unit of ``done``; None where nobody can know before the end."""
    unit: str
    """What is counted: "records", "bytes", "plans", "documents", "tokens" or "packs"."""
    tokens: int
    """Tokens this stage has handled so far."""


@dataclass(frozen=True, slots=True)
class Notice:
    """One line worth telling; a warning where something may not be as the user thinks."""

    text: str
    warning: bool = False


Listener = Callable[[Progress | Notice], None]


def nobody(event: Progress | Notice) -> None:
    """A listener that does not care."""
    del event
