"""Texts that know where generation blocks stand in them. Takes texts and gives them joined; knows no template."""

from collections.abc import Iterable, Sequence

from packtool.rendering.sandbox.meter import Meter


class Marked(str):
    """A text that knows where the generation blocks stand in it, while it is only joined to others.

    Anything else that is done to it gives a plain ``str``: the blocks' places are lost then, never guessed.
    """

    __slots__ = ("marks",)
    marks: tuple[tuple[int, int, int], ...]
    """Start, end, and the number of the block in the order of rendering."""


def mark(text: str, marks: Iterable[tuple[int, int, int]]) -> Marked:
    """A text with marks, as ``Marked.marks`` holds them."""
    result = Marked(text)
    result.marks = tuple(marks)
    return result


def join_marked(parts: Sequence[str], meter: Meter) -> str:
    """Join texts; generation blocks in them keep their places."""
    text = "".join(parts)
    marks: list[tuple[int, int, int]] = []
    position = 0
    for part in parts:
        if type(part) is Marked:
            meter.step(len(part.marks))
            marks.extend((start + position, end + position, number) for start, end, number in part.marks)
        position += len(part)
    return mark(text, marks) if marks else text
