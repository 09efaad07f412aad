"""The view of tokens shows ids, labels and positions as they stand, and counts what it folds."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.contract import IGNORED
from packtool.views.page import Page
from packtool.views.tokens import pack_tokens

from .made import Token, inspection, tokens

ROW = re.compile(r" *(\d+) (TRAIN|mask ) [┃┊] +(-?\d+) +(-?\d+)  '(.*)'")


@pytest.mark.parametrize("full", [False, True])
@given(segments=st.lists(tokens(), min_size=1, max_size=3))
def test_every_token_is_shown_or_counted(full: bool, segments: list[list[Token]]) -> None:
    found = inspection(*segments)
    page = Page(120, full=full)
    shown = [line.plain for line in pack_tokens(page, found, found.shown[0])]
    for segment, made in zip(found.shown[0].segments, segments, strict=True):
        begin = next(n for n, line in enumerate(shown) if line.startswith(f"── segment {segment.number} "))
        position = 0
        for line in shown[begin + 3 :]:
            if match := ROW.fullmatch(line):
                id, label = int(segment.input_ids[position]), int(segment.labels[position])
                assert (int(match[1]), int(match[3]), int(match[4])) == (position, id, label)
                assert (match[2] == "TRAIN") == (label != IGNORED)
                if len(made[position][0]) < 40:
                    assert match[5] == page.text(made[position][0])
                position += 1
            elif gap := re.search(r"… ([\d,]+) (masked|trained) tokens? not shown", line):
                assert not full
                hidden = made[position : position + int(gap[1])]
                assert {trained for _, trained in hidden} == {gap[2] == "trained"}
                position += len(hidden)
            else:
                break
        assert position == len(made)


def test_a_long_token_is_cut_where_the_page_ends_and_marked() -> None:
    found = inspection([("<s>", False), ("z" * 500, True)])
    *_, line = (line.plain for line in pack_tokens(Page(80), found, found.shown[0]))
    assert len(line) <= 80
    assert line.endswith("zz…'")
