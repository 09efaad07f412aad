"""What can go wrong, as types: the message is one line for the person who reads it, the type is the exit code."""

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

    ``reason`` is one of the names of DESIGN section 3 (``bad_json``, ``empty``, ...); ``detail`` is one short
    line for people. A refusal is a value, not an exception: a unit has many, and the run decides what they mean.
    """

    reason: str
    detail: str


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
