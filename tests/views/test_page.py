"""What all views share: nothing is too wide, nothing harmful gets through, what is folded is said."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from packtool.views import lines
from packtool.views.page import ASCII, UNICODE, WIDEST, Gap, Page, cut, folded

from .made import CONTROLS, inspection, tokens

VIEWS = [(False, False), (True, False), (False, True), (True, True)]


@pytest.mark.parametrize(("as_tokens", "mask"), VIEWS)
@given(
    segments=st.lists(tokens(), min_size=1, max_size=3),
    padding=st.integers(0, 30),
    width=st.sampled_from([40, 41, 60, 80, 120]),
    encoding=st.sampled_from(["utf-8", "ascii", "latin-1"]),
    full=st.booleans(),
    source=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=90),
)
def test_lines_fit_the_page_and_hold_nothing_that_a_terminal_obeys(
    segments: list, padding: int, width: int, encoding: str, full: bool, source: str, as_tokens: bool, mask: bool
) -> None:
    found = inspection(*segments, padding=padding, source=source)
    for line in lines(found, Page(width, encoding, full), tokens=as_tokens, mask=mask):
        assert cell_len(line.plain) <= width
        assert not CONTROLS & set(line.plain)
        assert line.plain.isprintable()
        line.plain.encode(encoding)


@given(text=st.text(st.sampled_from("ab 日🙂\u0301"), max_size=60), width=st.integers(2, 20))
def test_cutting_keeps_every_character(text: str, width: int) -> None:
    parts = list(cut(text, width))
    assert "".join(parts) == text
    assert all(cell_len(part) <= width for part in parts)


def test_a_terminal_of_any_width_gets_a_page_that_can_be_read() -> None:
    assert [Page.of(width, "utf-8", False).width for width in (10, 40, 80, 300)] == [40, 40, 80, WIDEST]


@pytest.mark.parametrize(
    ("encoding", "glyphs"),
    [("utf-8", UNICODE), ("ascii", ASCII), ("latin-1", ASCII), ("cp437", ASCII), ("what", ASCII)],
)
def test_what_an_encoding_lacks_is_drawn_in_ascii(encoding: str, glyphs: object) -> None:
    assert Page(80, encoding).glyphs is glyphs


@pytest.mark.parametrize("count", [1, 11, 12, 13, 14, 500])
def test_many_segments_are_folded_and_the_gap_says_which(count: int) -> None:
    found = inspection(*[[("a", False), ("b", True)]] * count)
    shown = folded(Page(80), found.shown[0], None)
    covered = [
        number
        for each in shown
        for number in (range(each.first, each.last + 1) if isinstance(each, Gap) else [each.number])
    ]
    assert covered == list(range(count))
    assert len(shown) <= 12
    assert not any(isinstance(a, Gap) and isinstance(b, Gap) for a, b in pairwise(shown))
    assert list(folded(Page(80, full=True), found.shown[0], None)) == list(found.shown[0].segments)


def test_of_a_document_that_was_asked_for_its_pieces_are_shown_alone() -> None:
    found = inspection(*[[("a", False), ("b", True)]] * 30)
    assert [each if isinstance(each, Gap) else each.number for each in folded(Page(80), found.shown[0], 17)] == [
        Gap(0, 16),
        17,
        Gap(18, 29),
    ]
