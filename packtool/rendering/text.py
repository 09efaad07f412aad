"""Records that are plain text: every token trains."""

from collections.abc import Mapping, Sequence
from typing import Any

from packtool.errors import Refusal
from packtool.rendering.rendered import Rendered, string_field


def render(record: Mapping[str, Any], column: str) -> Rendered | Refusal:
    """The text in ``column``; white space alone is ``empty``."""
    text = string_field(record, column)
    if isinstance(text, Refusal):
        return text
    if not text.strip():
        return Refusal("empty", f"field {column!r} holds only white space" if text else f"field {column!r} is empty")
    return Rendered(text)


def render_all(records: Sequence[Mapping[str, Any] | Refusal], column: str) -> list[str | Refusal]:
    """The text of each of many records, or why there is none; ``render`` is called for those alone that are odd."""
    texts: list[Any] = [None if isinstance(record, Refusal) else record.get(column) for record in records]
    if not _are_sound(texts):
        texts = [
            text if _are_sound([text]) else _one(record, column) for text, record in zip(texts, records, strict=True)
        ]
    return texts


def _are_sound(texts: Sequence[Any]) -> bool:
    """Whether ``render`` would take each of these; a call of Python's for all of them together."""
    if not set(map(type, texts)) <= {str} or not all(texts) or any(map(str.isspace, texts)):
        return False
    try:
        return all(map(str.encode, [text for text in texts if not text.isascii()]))
    except UnicodeEncodeError:
        return False  # a lone surrogate


def _one(record: Mapping[str, Any] | Refusal, column: str) -> str | Refusal:
    rendered = record if isinstance(record, Refusal) else render(record, column)
    return rendered.text if isinstance(rendered, Rendered) else rendered
