"""Records that are plain text: every token trains."""

from collections.abc import Mapping
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
