"""The picture of the mask is the mask."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.views.mask import pack_mask, shares
from packtool.views.page import Page

from .made import inspection


def allowed(lengths: list[int]) -> np.ndarray:
    """The mask, token by token: same segment, and not later."""
    owner = [number for number, length in enumerate(lengths) for _ in range(length)]
    return np.array([[a == b and k <= q for k, b in enumerate(owner)] for q, a in enumerate(owner)])


@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=12), data=st.data())
def test_each_cell_is_the_share_of_its_pairs(lengths: list[int], data: st.DataObject) -> None:
    tokens = sum(lengths)
    rows, columns = data.draw(st.integers(1, tokens)), data.draw(st.integers(1, tokens))
    mask = allowed(lengths)
    found = shares(lengths, rows, columns)
    assert found.shape == (rows, columns)
    for row in range(rows):
        for column in range(columns):
            cell = mask[
                tokens * row // rows : tokens * (row + 1) // rows,
                tokens * column // columns : tokens * (column + 1) // columns,
            ]
            assert found[row, column] == pytest.approx(cell.mean())


def test_the_example_of_the_docstring() -> None:
    assert shares([2, 1], 3, 3).tolist() == [[1, 0, 0], [1, 1, 0], [0, 0, 1]]


def rows_of(lengths: list[int], page: Page, padding: int = 0) -> list[str]:
    """The rows of the picture, with their margin."""
    found = inspection(*[[("a", n > 0) for n in range(length)] for length in lengths], padding=padding)
    shown = [line.plain for line in pack_mask(page, found, found.shown[0])]
    return shown[next(n for n, line in enumerate(shown) if "seen: 0" in line) + 1 :]


@given(lengths=st.lists(st.integers(1, 8), min_size=1, max_size=4), padding=st.integers(0, 3))
def test_a_short_pack_is_drawn_token_by_token(lengths: list[int], padding: int) -> None:
    drawn = rows_of(lengths, Page(120), padding)
    assert len(drawn) == sum(lengths) + padding
    mask = allowed([*lengths, *([padding] if padding else [])])
    for line, expected in zip(drawn, mask, strict=True):
        cells = line[15:].ljust(2 * len(expected))
        assert [cells[2 * k : 2 * k + 2] == "██" for k in range(len(expected))] == expected.tolist()
    assert sum("segment" in line for line in drawn) == len(lengths)
    assert sum("padding" in line for line in drawn) == (padding > 0)


@pytest.mark.parametrize("lengths", [[1] * 4096, [5000], [1, 4000, 1], [700] * 9])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_long_pack_shows_every_segment_on_the_diagonal_and_nothing_off_it(lengths: list[int], encoding: str) -> None:
    page = Page(80, encoding)
    drawn = rows_of(lengths, page)
    assert len(drawn) == 32
    owner = np.repeat(np.arange(len(lengths)), lengths)
    tokens = len(owner)
    for row, line in enumerate(drawn):
        looking = set(owner[tokens * row // 32 : tokens * (row + 1) // 32].tolist())
        for column, cell in enumerate(line[15:].ljust(64)):
            seen = set(owner[tokens * column // 64 : tokens * (column + 1) // 64].tolist())
            assert cell == " " or looking & seen
        assert line[15:][2 * row] != " ", "a token sees itself"
    told = [number for line in drawn for number in re.findall(r"\d+", line[:15])]
    assert told[0] == "0"
    assert told[-1] == str(len(lengths) - 1)
