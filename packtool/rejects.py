"""rejects.jsonl: one line for every record, document or piece that is not in the packs, and why.

Rows are in the order of their documents, then of their offsets. Knows nothing of who rejected what.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from packtool.errors import BadData

_LINE_BYTES = 1 << 20  # a row is a few hundred bytes; past this the file is not ours
_INT32_END = 2**31


@dataclass(frozen=True, slots=True)
class Reject:
    """A stretch of one document, or a whole record, that was skipped, left out or cut."""

    source: str
    """The source's name in the manifest."""
    line: int
    """1-based line, element or row in its source."""
    doc_id: int
    offset: int
    """The index in its document of the stretch's first token."""
    tokens: int
    """Tokens in the stretch; 0 for a record that never became tokens."""
    checksum: int
    """h of the stretch (``hashing.token_checksums`` with its offset), in 0 .. 2^64 - 1; 0 without tokens."""
    reason: str
    detail: str
    """One short line for people."""


# Numbers are int32 where the shards' columns are, so that sums over rows cannot overflow int64.
_LIMITS = {
    "line": (1, 2**63),
    "doc_id": (0, 2**63),
    "offset": (0, _INT32_END),
    "tokens": (0, _INT32_END),
    "checksum": (0, 2**64),
}
_NAMES = tuple(field.name for field in fields(Reject))


def read_rejects(path: Path) -> Iterator[Reject]:
    """The rows of a ``rejects.jsonl``, one at a time, as they stand; their order is not checked.

    Raises:
        BadData: the file cannot be read, or a line is not such a row; the message names ``file:line``.
    """
    try:
        with path.open("rb") as handle:
            number = 0
            while line := handle.readline(_LINE_BYTES):
                number += 1
                yield _parsed(path, number, line)
    except OSError as error:
        raise BadData(f"{path}: cannot be read: {error.strerror}") from None


def _parsed(path: Path, number: int, line: bytes) -> Reject:
    if not line.endswith(b"\n"):
        raise BadData(f"{path}:{number}: the line is cut short, or too long for a row")
    try:
        row: Any = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise BadData(f"{path}:{number}: not JSON: {error}") from None
    if not isinstance(row, dict) or row.keys() != set(_NAMES):
        raise BadData(f"{path}:{number}: expected an object with {', '.join(_NAMES)}")
    for name in _NAMES:
        value = row[name]
        if name in _LIMITS:
            low, end = _LIMITS[name]
            if type(value) is not int or not low <= value < end:
                raise BadData(
                    f"{path}:{number}: {name} is {value!r:.60}; expected a whole number from {low} to {end - 1}"
                )
        elif not isinstance(value, str):
            raise BadData(f"{path}:{number}: {name} is {value!r:.60}; expected text")
    return Reject(**row)


def write_rejects(file: BinaryIO, rows: Iterable[Reject]) -> None:
    """Write rows, which are in the order of their doc ids and offsets, to an open file."""
    for row in rows:
        file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
