"""The text view can be read without colour: whoever has only its lines knows what trains, and at which position."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.style import Style

from packtool.contract import IGNORED
from packtool.errors import printable
from packtool.inspection import Inspection, show
from packtool.views import lines
from packtool.views.page import Page
from packtool.views.text import pack_text

from .made import Token, chat_dataset, inspection, tokens

LINE = re.compile(r" *(\d+) (TRAIN|mask |     ) ([┃┊|:]) (.*)")


def plain(found: Inspection, page: Page) -> list[str]:
    return [line.plain for line in pack_text(page, found, found.shown[0])]


def read_back(shown: list[str], page: Page) -> list[list[tuple[int, bool, str]]]:
    """What a person reads from plain lines: for each segment (position, trains, text) of each line."""
    segments: list[list[tuple[int, bool, str]]] = []
    for line in shown:
        if re.match(r"(──|--) segment", line):
            segments.append([])
        elif match := LINE.fullmatch(line):
            segments[-1].append((int(match[1]), match[3] == page.glyphs.trained, match[4]))
            assert not match[2].strip() or (match[2] == "TRAIN") == (match[3] == page.glyphs.trained)
    return segments


@given(segments=st.lists(tokens(), min_size=1, max_size=3), width=st.sampled_from([40, 80, 120]))
def test_a_reader_of_plain_lines_knows_what_trains_and_where_documents_begin(
    segments: list[list[Token]], width: int
) -> None:
    page = Page(width, full=True)
    found = inspection(*segments)
    read = read_back(plain(found, page), page)
    assert len(read) == len(segments)
    for lines_read, tokens_made in zip(read, segments, strict=True):
        expected = {
            train: "".join(piece for piece, trains in tokens_made if trains is train) for train in (True, False)
        }
        for train in (True, False):
            told = "".join(text for _, trained, text in lines_read if trained is train)
            assert told == "".join(printable(part) + "↵" for part in expected[train].split("\n"))[:-1]
        positions = [position for position, _, _ in lines_read]
        assert positions[0] == 0, "positions restart with every document"
        assert positions == sorted(positions)
        for position, trained, text in lines_read:
            # A piece of "" is a part of the character that the next piece completes.
            whole = next(index for index in range(position, len(tokens_made)) if tokens_made[index][0])
            assert tokens_made[position][1] is trained
            assert tokens_made[whole][1] is trained
            first = printable(tokens_made[whole][0].replace("\n", ""))
            assert not first or not text.strip("↵") or text[0] in first


@given(words=st.lists(st.tuples(st.sampled_from(["a", " word", "\n", " ", "日本"]), st.booleans()), max_size=600))
def test_folding_hides_what_it_says_and_no_more(words: list[Token]) -> None:
    made = [("<s>", False), *words]
    segment = plain(inspection(made), Page(80))
    segment = segment[next(n for n, line in enumerate(segment) if LINE.fullmatch(line)) :]
    shown = "".join(match[4] for line in segment if (match := LINE.fullmatch(line))).replace("↵", "\n")
    position = 0
    for line in segment:
        if match := LINE.fullmatch(line):
            # All between two gaps follows without a hole, in the order of the tokens.
            assert int(match[1]) == position
            assert made[position][1] is (match[3] == "┃")
            left = match[4].replace("↵", "\n")
            while left:
                assert left.startswith(made[position][0])
                left = left.removeprefix(made[position][0])
                position += 1
        else:
            gap = re.fullmatch(r" +… ([\d,]+) (?:masked |trained )?tokens?(?:, ([\d,]+) of them trained,)? not.*", line)
            assert gap, line
            hidden = made[position : position + int(gap[1])]
            if gap[2]:
                assert int(gap[2]) == sum(trained for _, trained in hidden)
            position += len(hidden)
    assert position == len(made)
    assert shown


def test_a_fold_counts_the_tokens_that_it_hides() -> None:
    words = [("<s>", False), *((f" word{n}", n > 500) for n in range(2_000)), ("!", False)]
    shown = plain(inspection(words), Page(80))
    assert len(shown) < 60
    hidden = [
        (int(m[1].replace(",", "")), n) for n, line in enumerate(shown) if (m := re.search(r"… ([\d,]+) \w+ tok", line))
    ]
    assert len(hidden) == 2
    for count, number in hidden:
        before, after = LINE.fullmatch(shown[number - 1]), LINE.fullmatch(shown[number + 1])
        assert before
        assert after
        words_before = len(before[4].split())
        assert int(before[1]) + words_before + count == int(after[1])
        assert after[2].strip(), "a line behind a gap says what it is"


def test_a_segment_of_many_runs_stays_short_and_ends_as_it_ends() -> None:
    turns = [("<s>", False), *((f" {'answer' if n % 2 else 'question'}{n}", n % 2 == 1) for n in range(3_000))]
    shown = plain(inspection(turns), Page(80))
    assert len(shown) < 60
    assert "answer2999" in shown[-1]
    (gap,) = [line for line in shown if "not shown" in line]
    assert "of them trained" in gap


def test_huge_texts_of_one_token_are_folded_too() -> None:
    shown = plain(inspection([("<s>", False), ("y" * 1_000_000, True)]), Page(80))
    assert len(shown) < 60
    assert any("the rest of a token not shown" in line for line in shown)


def test_padding_is_named_and_counted() -> None:
    shown = plain(inspection([("<s>", False), ("a", True)], padding=1_234), Page(80))
    assert any("padding" in line for line in shown if line.startswith("──"))
    assert shown[-1].endswith("<pad> x 1,234")
    assert any("then 1,234 of padding" in line for line in shown)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_dataset(tmp_path_factory.mktemp("chats") / "out")


def styles(found: Inspection) -> dict[str, Style]:
    """Every word of a view with the style it has on a terminal with colours."""
    console = Console(force_terminal=True, color_system="truecolor", width=200)
    return {
        segment.text.strip(): segment.style or Style.null()
        for line in lines(found, Page(120), tokens=False, mask=False)
        for segment in console.render(line)
        if segment.text.strip()
    }


def test_with_colour_what_trains_is_bright_and_what_does_not_is_dim() -> None:
    shown = styles(inspection([("<s>", False), ("question", False), ("answer", True), ("after", False)]))
    assert shown["answer"].bold
    assert not shown["answer"].dim
    assert shown["<s>question"].dim
    assert not shown["<s>question"].bold
    assert shown["after"].dim


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_real_packs_read_back_as_their_labels_say(chats: Path, encoding: str) -> None:
    page = Page(80, encoding, full=True)
    found = show(chats, pack=1)
    read = read_back(plain(found, page), page)
    for lines_read, segment in zip(read, found.shown[0].segments, strict=True):
        trained = {position for position, train, _ in lines_read if train}
        assert trained <= set((segment.labels != IGNORED).nonzero()[0].tolist())
        told = "".join(text for _, train, text in lines_read if train)
        expected = "".join(run.text for run in segment.runs if run.trained)
        assert told == page.glyphs.newline.join(page.text(part) for part in expected.split("\n"))
