"""Plain JSON data and what it weighs: takes what a template is given, and refuses all else. Knows no template."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from packtool.rendering.sandbox.meter import ITEM, MAX_INTEGER, MAX_NESTING


class NotPlain(Exception):
    """A value handed to a template is not plain JSON data; the text says what it is."""


_FIXED = frozenset({float, bool, type(None)})
SCALARS = _FIXED | {int}
"""Types of plain data that are neither text nor hold anything."""


def digits(number: int) -> int:
    """At least how many digits a number has, small ones apart."""
    return number.bit_length() >> 1


def weigh_plain(value: Any, weights: dict[int, int], depth: int = 1) -> int:
    """Make sure that a value is plain JSON data, and weigh it.

    Args:
        value: str, int, float, bool, None, or lists and dicts with text keys of them; exactly these types.
        weights: takes for each list and dict, by its id, what it weighs.
        depth: how many lists and dicts it stands in, itself included.

    Returns:
        its characters, and 8 for each item.

    Raises:
        NotPlain: something else is in it, or it is nested too deeply.
    """
    kind = type(value)
    if kind is str:
        return len(value) + ITEM
    if kind is int:
        if not -MAX_INTEGER < value < MAX_INTEGER:
            raise NotPlain("a number of more than 600 digits")
        return ITEM + digits(value)
    if kind in _FIXED:
        return ITEM
    if depth > MAX_NESTING:
        raise NotPlain(f"lists and objects more than {MAX_NESTING} deep")
    size = ITEM
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise NotPlain(f"a key of type {type(key).__name__}")
            size += len(key) + ITEM
            item_kind = type(item)
            if item_kind is str:
                size += len(item)
            elif item_kind not in _FIXED:
                size += weigh_plain(item, weights, depth + 1)
    elif kind is list:
        for item in value:
            size += len(item) + ITEM if type(item) is str else weigh_plain(item, weights, depth + 1)
    else:
        raise NotPlain(f"a value of type {kind.__name__}")
    weights[id(value)] = size
    return size


def admit(values: dict[str, Any]) -> tuple[dict[str, Any], dict[int, int], int]:
    """Values for a template as plain JSON data, the weights of what is in them, and of all of it.

    Raises:
        NotPlain: a value is something else.
    """
    weights: dict[int, int] = {}
    try:
        return values, weights, weigh_plain(values, weights)
    except NotPlain:
        # Rare: what reads records gives plain data, and looking is cheaper than copying.
        plain = _plain(values)
        weights.clear()
        return plain, weights, weigh_plain(plain, weights)


def _plain(value: Any, depth: int = 1) -> Any:
    """A copy that is made of Python's own types: of subclasses, numpy's scalars, tuples and other mappings."""
    if depth > MAX_NESTING + 1:
        raise NotPlain(f"lists and objects more than {MAX_NESTING} deep")
    if isinstance(value, np.generic) and not isinstance(value, str | bytes):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, Mapping):
        return {_plain(key, depth + 1): _plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, depth + 1) for item in value]
    return value
