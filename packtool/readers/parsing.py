"""The bytes of one JSON value become a record, or the reason why they are none. It knows no file or field."""

import json
import re
from collections.abc import Sequence
from typing import Any

import orjson

from packtool.errors import Refusal, printable
from packtool.readers.units import Record

BLANK = b" \t\r\n"
"""White space of JSON."""
AROUND_BYTES = 1 << 16
"""White space around a record, and the end of its line, are no part of its size; but more than this is not held."""
START_BYTES = 64
"""How much is kept of a record that is too large, to be quoted."""
_QUOTED = 60
_MOST_NESTED = 500
"""Arrays and objects inside one another; Python's parser, without it, goes as deep as its caller left room for."""
_STRUCTURE = re.compile(r'\\.|["\[\]{}]', re.DOTALL)


def parse(raw: bytes) -> Record | Refusal:
    """The JSON object in ``raw``.

    The last of duplicate keys wins. NaN, Infinity and lone surrogates pass: they matter only in a field that
    is used. A whole number beyond 64 bits may arrive as a float of at least 2^63 in magnitude (``orjson``
    makes it one), which no id, mask, label or weight can be; a float below that was written as one.

    Returns:
        The record, or a Refusal ``bad_utf8``, ``bad_json`` or ``not_object``.
    """
    try:
        value = orjson.loads(raw)
    except orjson.JSONDecodeError:
        value = _parse_leniently(raw)
        if isinstance(value, Refusal):
            return value
    if isinstance(value, dict):
        return value
    return Refusal("not_object", f"{_TYPES.get(type(value), 'null')}, not an object: {quoted(raw)}")


def parse_all(raws: Sequence[bytes]) -> list[Record | Refusal]:
    """What ``parse`` makes of each; it is called for those alone that ``orjson`` refuses, or that are no objects."""
    values: list[Any] = []
    waiting = iter(raws)
    while len(values) < len(raws):
        try:
            for value in map(orjson.loads, waiting):
                values.append(value)  # one by one: what came before the one that is refused must not be lost
        except orjson.JSONDecodeError:
            values.append(parse(raws[len(values)]))
    if not set(map(type, values)) <= {dict, Refusal}:
        values = [
            value if type(value) in (dict, Refusal) else parse(raw) for value, raw in zip(values, raws, strict=True)
        ]
    return values


def size_of(raw: bytes, max_record_bytes: int) -> int:
    """The bytes of a record that stands in ``raw``: without what surrounds it, unless that is too much to be held."""
    size = len(raw.strip(BLANK))
    return size if len(raw) <= max_record_bytes + AROUND_BYTES else max(size, len(raw.removesuffix(b"\n")))


def too_large(length: int, limit: int, start: bytes) -> Refusal:
    """The refusal of a record of ``length`` bytes that begins with ``start``."""
    return Refusal("too_large", f"{length:,} bytes, over the limit of {limit:,}: {quoted(start)}")


def quoted(raw: bytes | str, at: int = 0) -> str:
    """A stretch of about 60 characters around ``at``, on one line, safe to print."""
    start = max(0, at - _QUOTED // 2) if len(raw) > _QUOTED else 0
    piece = raw[start : start + _QUOTED]
    more = len(raw) > start + _QUOTED
    if isinstance(piece, bytes):
        # a character cut in two at an end of the stretch is no fault of the record
        piece = piece.decode("utf-8", "ignore" if more or start else "backslashreplace")
    return f"{'…' if start else ''}{printable(piece.strip())}{'…' if more else ''}"


_TYPES = {list: "an array", str: "a string", int: "a number", float: "a number", bool: "true or false"}


def _parse_leniently(raw: bytes) -> object:
    """What ``orjson`` refuses: more is JSON to Python's parser, and it says where a fault is."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = error.start
        return Refusal("bad_utf8", f"byte {at + 1} (0x{raw[at]:02x}) is not UTF-8: {quoted(raw, at)}")
    if _is_nested_too_deeply(text):
        return Refusal("bad_json", f"nested too deeply: {quoted(text)}")
    try:
        return json.loads(text, parse_int=_whole_number)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")  # as some of Python's texts end
        return Refusal("bad_json", f"{what} at character {error.pos + 1}: {quoted(text, error.pos)}")


def _is_nested_too_deeply(text: str) -> bool:
    if text.count("[") + text.count("{") <= _MOST_NESTED:
        return False
    depth = 0
    in_string = False
    for match in _STRUCTURE.finditer(text):
        mark = match[0]
        if mark == '"':
            in_string = not in_string
        elif not in_string and mark in ("[", "{"):
            depth += 1
            if depth > _MOST_NESTED:
                return True
        elif not in_string and mark in ("]", "}"):
            depth -= 1
    return False


def _whole_number(digits: str) -> int | float:
    # Python refuses to make an integer of more than 4,300 digits, for its cost
    return int(digits) if len(digits) <= 4300 else float(digits)
