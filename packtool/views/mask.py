"""The attention mask that a pack asks for, as a picture: which token may see which."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray
from rich.text import Text

from packtool.amounts import percent
from packtool.inspection import Inspection, ShownPack
from packtool.views.page import MASKED_STYLE, Page, pack_header, wrapped

Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]

_MARGIN = 15
_LARGEST = 96
"""Cells across at most."""
_COLOURS = ("cyan", "yellow")
"""Of neighbouring segments, in turn."""


def shares(lengths: Sequence[int], rows: int, columns: int) -> Float64s:
    """How much of each cell of a picture is allowed by the block-diagonal causal mask.

    Row r stands for the tokens that look, from T*r//rows on to T*(r+1)//rows, and column c in the same way for those
    that are looked at. With lengths 2 1 at 3 x 3: 1 0 0 / 1 1 0 / 0 0 1.

    Args:
        lengths: tokens of each segment; sums to T.
        rows: at most T.
        columns: at most T.

    Returns:
        float64 [rows, columns], from 0 (no pair of tokens) to 1 (every pair).
    """
    sizes = np.array(lengths, dtype=np.int64)
    tokens = int(sizes.sum())
    starts = np.repeat(np.cumsum(sizes) - sizes, sizes)
    down, across = _edges(tokens, rows), _edges(tokens, columns)
    picture = np.empty((rows, columns))
    for row in range(rows):
        looking = np.arange(down[row], down[row + 1], dtype=np.int64)[:, None]
        # Token q sees the tokens from its segment's start to itself.
        stops = np.minimum(looking + 1, across[1:])
        seen = np.maximum(0, stops - np.maximum(starts[down[row] : down[row + 1], None], across[:-1]))
        picture[row] = seen.sum(axis=0) / (np.diff(across) * len(looking))
    return picture


def pack_mask(page: Page, inspection: Inspection, pack: ShownPack) -> Iterator[Text]:
    """One pack's mask."""
    yield from pack_header(page, inspection, pack)
    lengths = [segment.length for segment in pack.segments]
    tokens = sum(lengths)
    room = min(page.width - _MARGIN, _LARGEST) // 2 * 2
    exact = tokens * 2 <= room
    columns = tokens if exact else min(tokens, room)
    rows = tokens if exact else max(1, columns // 2)
    picture = shares(lengths, rows, columns)
    pairs = sum(length * (length + 1) // 2 for length in lengths)
    yield Text()
    yield from _legend(page, tokens, rows, columns, pairs)
    yield Text()
    axis = _ends("seen: 0", str(tokens - 1), columns * (2 if exact else 1))
    yield Text(" " * _MARGIN + axis, style=MASKED_STYLE)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    down, across = _edges(tokens, rows), _edges(tokens, columns)
    for row in range(rows):
        first, last = int(owner[down[row]]), int(owner[down[row + 1] - 1])
        begun = [number for number in range(first, last + 1) if pack.segments[number].start >= down[row]]
        line = Text().append(f"{_begun(pack, begun):>{_MARGIN - 1}} ", style=MASKED_STYLE)
        for column in range(int(np.flatnonzero(picture[row])[-1]) + 1):  # a token sees itself, so there is a cell
            # The segments that the cell is of: mostly one, else the one in their middle gives the colour.
            both = max(first, int(owner[across[column]])) + min(last, int(owner[across[column + 1] - 1]))
            shade = _shade(page, float(picture[row, column]))
            line.append(shade * (2 if exact else 1), style=_colour(pack, both // 2))
        yield line


def _colour(pack: ShownPack, segment: int) -> str:
    return MASKED_STYLE if pack.segments[segment].is_padding else _COLOURS[segment % len(_COLOURS)]


def _edges(tokens: int, cells: int) -> Int64s:
    """Where cells begin and the last one ends: 5 tokens in 2 cells give 0, 2, 5."""
    return np.arange(cells + 1, dtype=np.int64) * tokens // cells


def _legend(page: Page, tokens: int, rows: int, columns: int, pairs: int) -> Iterator[Text]:
    yield from wrapped(
        "Each row is a token that looks, each column one that it may see: itself and what stands before it in its own "
        "segment, never another segment.",
        page,
    )
    if columns < tokens:
        shades = page.glyphs.shades
        yield from wrapped(
            f"A cell is up to {-(-tokens // rows):,} x {-(-tokens // columns):,} tokens; of its pairs are allowed: "
            f"{shades[4]} all, {shades[3]} half or more, {shades[2]} a tenth or more, {shades[1]} some.",
            page,
            MASKED_STYLE,
        )
    whole = tokens * (tokens + 1) // 2
    yield from wrapped(
        f"{pairs:,} pairs of tokens: {percent(pairs / whole)} of what one document of this length would cost.",
        page,
        MASKED_STYLE,
    )


def _shade(page: Page, share: float) -> str:
    level = 0 if share == 0 else 4 if share == 1 else 3 if share >= 0.5 else 2 if share >= 0.1 else 1
    return page.glyphs.shades[level]


def _begun(pack: ShownPack, numbers: list[int]) -> str:
    """Which segments begin in a row."""
    if not numbers:
        return ""
    if len(numbers) > 1:
        return f"{numbers[0]}-{numbers[-1]}"
    return "padding" if pack.segments[numbers[0]].is_padding else f"segment {numbers[0]}"


def _ends(left: str, right: str, width: int) -> str:
    return f"{left}{right:>{max(1, width - len(left))}}" if width > len(left) + len(right) else left
