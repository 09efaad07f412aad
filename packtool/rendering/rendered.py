"""What rendering gives: a text and which of its characters carry loss."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from packtool.errors import Refusal


@dataclass(frozen=True, slots=True)
class Rendered:
    """The text of one document and its trained characters."""

    text: str
    spans: tuple[tuple[int, int], ...] | None = None
    """Half-open character spans that carry loss, rising and disjoint; None: all of the text."""
    notes: tuple[str, ...] = ()
    """What is worth counting about it."""
    border: int | None = None
    """Where a prompt ends and its completion begins."""


Renderer = Callable[[Mapping[str, Any]], Rendered | Refusal]
"""One record, as a mapping from column to value, to its text or to the reason why there is none."""


def string_field(record: Mapping[str, Any], column: str) -> str | Refusal:
    """The text in a column, or why there is none: ``missing_field``, ``wrong_type`` or ``lone_surrogate``."""
    value = record.get(column)
    if value is None:
        state = "null" if column in record else "not there"
        return Refusal("missing_field", f"field {column!r} is {state}")
    if not isinstance(value, str):
        return Refusal("wrong_type", f"field {column!r} is {type_name(value)}, not a string")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError as error:
            return Refusal(
                "lone_surrogate",
                f"field {column!r} holds the lone surrogate U+{ord(value[error.start]):04X} "
                f"at character {error.start}; it cannot be tokenized",
            )
    return value


def type_name(value: Any) -> str:
    """The type of a value in the words of JSON, so that it reads the same whichever file it came from."""
    names = {type(None): "null", bool: "true or false", int: "a number", float: "a number", str: "text"}
    names |= {list: "a list", dict: "an object", bytes: "bytes"}
    if isinstance(value, np.ndarray):
        return "a list"
    return names.get(type(value), f"of type {type(value).__name__}")
