"""The text of packs: each segment under its rule, each line with the position it begins at, trained or masked."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from rich.cells import cell_len
from rich.text import Text

from packtool.inspection import Inspection, Run, ShownPack, ShownSegment
from packtool.views.page import (
    MASKED_STYLE,
    NOTE_STYLE,
    TRAINED_STYLE,
    Gap,
    Page,
    cut,
    folded,
    gap_lines,
    gutter,
    gutter_width,
    hidden_tokens,
    pack_header,
    position_digits,
    segment_header,
    shortened,
)
from packtool.views.page import legend as shared_legend

_LINES = 160
"""Of a pack's text, about, shared by the segments that are shown."""
_FEWEST_LINES, _MOST_LINES = 12, 40
_FEWEST_LINES_OF_RUN = 3
_LOOK_BACK = 20
"""Cells at a line's end in which a blank is looked for to break at."""


def legend(page: Page) -> Iterator[Text]:
    """How to read the view."""
    yield from shared_legend(
        page,
        "the number in front is the position of the line's first token, which restarts at 0 in every segment; "
        f"{page.glyphs.newline} is a new line in the text",
    )


def pack_text(page: Page, inspection: Inspection, pack: ShownPack) -> Iterator[Text]:
    """One pack, segment by segment."""
    yield from pack_header(page, inspection, pack)
    shown = folded(page, pack, inspection.doc_id)
    lines = max(_FEWEST_LINES, min(_MOST_LINES, _LINES // len(shown)))
    for each in shown:
        yield Text()
        if isinstance(each, Gap):
            yield from gap_lines(page, each)
            continue
        yield from segment_header(page, each)
        if each.is_padding and not page.full:
            yield from _padding(page, each)
        else:
            yield from _segment(page, each, None if page.full else lines)


@dataclass(frozen=True, slots=True)
class _Line:
    start: int
    """The token that the line's first character belongs to."""
    stop: int
    """One past the last token with a character on it."""
    trained: bool
    named: bool
    """Whether the gutter says in words if it trains, as on the first line of a run."""
    text: str
    """Printable."""
    ends_line: bool
    """Whether the text itself has a new line here."""


def _segment(page: Page, segment: ShownSegment, most: int | None) -> Iterator[Text]:
    """A segment's text on about ``most`` lines: every run shows how it begins and ends, as far as there is room."""
    runs = segment.runs
    if most is None:
        yield from (line for run in runs for line in _run(page, segment, run, None))
        return
    head, tail = _outer_runs(page, segment, most)
    kept = [*runs[:head], *runs[tail:]]
    # The long runs share what the short ones leave.
    sizes = [_lines(page, segment, run, most) for run in kept]
    room = next((cap for cap in range(most, 0, -1) if sum(min(size, cap) for size in sizes) <= most), 1)
    for run in runs[:head]:
        yield from _run(page, segment, run, max(room, _FEWEST_LINES_OF_RUN))
    if head < tail:
        yield from hidden_tokens(page, segment, runs[head].start, runs[tail].start)
    for run in runs[tail:]:
        yield from _run(page, segment, run, max(room, _FEWEST_LINES_OF_RUN))


def _outer_runs(page: Page, segment: ShownSegment, most: int) -> tuple[int, int]:
    """How many of the first runs fit on ``most`` lines together with those from which one on, each cut short."""
    runs = segment.runs
    if len(runs) <= most:
        total = sum(_lines(page, segment, run, _FEWEST_LINES_OF_RUN) for run in runs)
        if total <= most:
            return len(runs), len(runs)
    head, tail = 1, len(runs) - 1
    left = most - 2 * _FEWEST_LINES_OF_RUN - 1
    while head < tail:
        # Two of the first for one of the last.
        run = runs[head] if head < 2 * (len(runs) - tail) else runs[tail - 1]
        left -= _lines(page, segment, run, _FEWEST_LINES_OF_RUN)
        if left < 0:
            break
        head, tail = (head + 1, tail) if run is runs[head] else (head, tail - 1)
    return head, tail


def _lines(page: Page, segment: ShownSegment, run: Run, most: int) -> int:
    return sum(1 for _ in islice(_flow(page, segment, run, run.start), most))


def _run(page: Page, segment: ShownSegment, run: Run, most: int | None) -> Iterator[Text]:
    """The lines of a run; those in its middle folded where they are more than ``most``."""
    if most is None:
        yield from (_drawn(page, segment, line) for line in _flow(page, segment, run, run.start))
        return
    begun = list(islice(_flow(page, segment, run, run.start), most + 1))
    if len(begun) <= most:
        yield from (_drawn(page, segment, line) for line in begun)
        return
    last = most // 3
    head = begun[: most - last - 1]
    # As many tokens as can fill the last lines and more, from where a character begins.
    start = max(head[-1].stop, run.stop - last * page.width)
    while start > head[-1].stop and not segment.pieces[start - 1]:
        start -= 1
    tail = [line for line in deque(_flow(page, segment, run, start), last) if line.start >= head[-1].stop]
    yield from (_drawn(page, segment, line) for line in head)
    hidden = tail[0].start if tail else run.stop
    if hidden > head[-1].stop:
        yield from hidden_tokens(page, segment, head[-1].stop, hidden)
    elif len(begun) > most:
        yield from hidden_tokens(page, segment, hidden, hidden)
    # The line behind a gap says again what it is.
    yield from (_drawn(page, segment, replace(line, named=line is tail[0])) for line in tail)


def _drawn(page: Page, segment: ShownSegment, line: _Line) -> Text:
    drawn = gutter(page, position_digits(segment), int(segment.position_ids[line.start]), line.trained, line.named)
    drawn.append(line.text, style=TRAINED_STYLE if line.trained else MASKED_STYLE)
    if line.ends_line:
        drawn.append(page.glyphs.newline, style=MASKED_STYLE)
    return drawn


def _padding(page: Page, segment: ShownSegment) -> Iterator[Text]:
    digits = position_digits(segment)
    line = gutter(page, digits, int(segment.position_ids[0]), trained=False)
    times = f" x {segment.length:,}"
    room = max(4, min(40, page.width - gutter_width(digits) - len(times)))
    yield line.append(f"{shortened(page, segment.texts[0], room)}{times}", style=NOTE_STYLE)


def _flow(page: Page, segment: ShownSegment, run: Run, start: int) -> Iterator[_Line]:
    """The lines of a run's text from token ``start`` on, each narrow enough for the page."""
    room = page.width - gutter_width(position_digits(segment)) - len(page.glyphs.newline)
    for line in _filled(page, segment.pieces[start : run.stop], room):
        named = start == run.start and line.start == 0
        yield replace(line, start=start + line.start, stop=start + line.stop, trained=run.trained, named=named)


@dataclass(slots=True)
class _Open:
    """A line that is being filled: printable parts, and the token that each is from."""

    parts: list[tuple[int, str]]
    cells: int

    def closed(self, ends_line: bool = False) -> _Line:
        text = "".join(part for _, part in self.parts)
        return _Line(self.parts[0][0], self.parts[-1][0] + 1, False, False, text, ends_line)

    def broken(self) -> "_Line":
        """The line up to its last blank, if there is one near its end, else whole; what is behind it stays."""
        at, behind = len(self.parts), 0
        for index in range(len(self.parts) - 1, 0, -1):
            behind += cell_len(self.parts[index][1])
            if behind > _LOOK_BACK:
                break
            if self.parts[index][1].startswith(" ") or self.parts[index - 1][1].endswith(" "):
                at = index
                break
        rest = self.parts[at:]
        del self.parts[at:]
        line = self.closed()
        self.parts, self.cells = rest, sum(cell_len(part) for _, part in rest)
        return line


def _filled(page: Page, pieces: Sequence[str], room: int) -> Iterator[_Line]:
    """Lines of at most ``room`` cells that hold the pieces; tokens are counted from the first piece."""
    line = _Open([], 0)
    begun = 0
    for index, piece in enumerate(pieces):
        if not piece:
            continue  # a part of a character; the piece that completes it begins here
        *closed, rest = piece.split("\n")
        for number, part in enumerate([*closed, rest]):
            for fitting in cut(page.text(part), room):
                while line.parts and line.cells + cell_len(fitting) > room:
                    yield line.broken()
                line.parts.append((begun, fitting))
                line.cells += cell_len(fitting)
            if number < len(closed):
                yield line.closed(ends_line=True)
                line = _Open([], 0)
        if line.parts and line.parts[-1] == (begun, ""):
            line.parts.pop()
        begun = index + 1
    if line.parts:
        yield line.closed()
