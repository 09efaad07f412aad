"""What can go wrong, as types: the message is one line for the person who reads it, the type is the exit code."""

import re
from dataclasses import dataclass


class PacktoolError(Exception):
    """Something a user can mend; its text says what, where, and what to do. Exit code 1."""

    exit_code = 1


class BadData(PacktoolError):
    """A bad record, a damaged source, a failed check, or nothing left to pack. Exit code 1."""


class Misuse(PacktoolError):
    """Flags, config, a missing source or tokenizer, an output that cannot be used. Exit code 2."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one record does not become a document.

    ``reason`` is a name of ``BAD_RECORD_REASONS`` or ``LEFT_OUT_REASONS``; ``detail`` is one short line for
    people. A refusal is a value, not an exception: a unit has many, and the run decides what they mean.
    """

    reason: str
    detail: str


def bad_record_message(source: str, row: int, reason: str, detail: str) -> str:
    """The one line that a bad record, in the zero-based ``row`` of ``source``, stops a run with."""
    return f"{source}:{row + 1}: {reason}: {detail} (mend it, or pass over bad records with --on-bad-record skip)"


def one_line(error: BaseException) -> str:
    """What another library says of an error, on one line of at most 200 characters; its type where it says nothing."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def printable(text: str) -> str:
    """Text from anywhere as it may be shown: on one line, without anything that does not print.

    What a terminal would obey or hide stands as an escape: control characters, those that turn the direction of
    writing, those without width, blanks other than the common one, lone surrogates, what is not assigned.
    """
    if is_printable(text):
        return text
    return "".join(c if is_printable(c) else ascii(c)[1:-1] for c in text)


def is_printable(text: str) -> bool:
    """Whether ``printable`` leaves a text as it is."""
    return text.isprintable() and (text.isascii() or not _UNSEEN.search(text))


# What of Unicode's Default_Ignorable_Code_Point counts as printable in Python, and the braille pattern without a dot.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]"
)


BAD_RECORD_REASONS = frozenset(
    {
        "bad_json",
        "bad_utf8",
        "not_object",
        "missing_field",
        "wrong_type",
        "lone_surrogate",
        "token_out_of_range",
        "mask_length",
        "bad_mask",
        "bad_label",
        "too_large",
    }
)
"""Reasons that stop a run unless ``--on-bad-record skip``."""

UNRENDERED_REASONS = frozenset({"template_error", "span_unprovable", "bad_role", "unsupported_part"})
"""Left out because a template would not take the record; bounded by ``--max-left-out``."""

LEFT_OUT_REASONS = UNRENDERED_REASONS | {"empty", "overlong", "truncated", "nothing_to_train"}
"""Well-formed, but not (or not whole) in the packs."""
