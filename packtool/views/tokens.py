"""The tokens of packs, one a line: position, whether it trains, id, label, text. Long stretches are folded."""

from collections.abc import Iterator

from rich.text import Text

from packtool.inspection import Inspection, Run, ShownPack, ShownSegment
from packtool.views.page import (
    MASKED_STYLE,
    TRAINED_STYLE,
    Gap,
    Page,
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

_MASKED_HEAD, _MASKED_TAIL = 2, 2
_TRAINED_HEAD, _TRAINED_TAIL = 12, 4
_NUMBER = 7


def legend(page: Page) -> Iterator[Text]:
    """How to read the view."""
    yield from shared_legend(page, "labels are not shifted: a label is the token itself, or -100")


def pack_tokens(page: Page, inspection: Inspection, pack: ShownPack) -> Iterator[Text]:
    """One pack, segment by segment and token by token."""
    yield from pack_header(page, inspection, pack)
    for each in folded(page, pack, inspection.doc_id):
        yield Text()
        if isinstance(each, Gap):
            yield from gap_lines(page, each)
            continue
        yield from segment_header(page, each)
        digits = position_digits(each)
        yield Text(f"{'at':>{digits}}         {'id':>{_NUMBER}}  {'label':>{_NUMBER}}  text", style=MASKED_STYLE)
        for run in each.runs:
            yield from _run(page, digits, each, run)


def _run(page: Page, digits: int, segment: ShownSegment, run: Run) -> Iterator[Text]:
    head, tail = (_TRAINED_HEAD, _TRAINED_TAIL) if run.trained else (_MASKED_HEAD, _MASKED_TAIL)
    start, stop = run.start + head, run.stop - tail
    if page.full or stop - start < 2:
        start = stop = run.stop
    yield from (_token(page, digits, segment, run, index) for index in range(run.start, start))
    if start < stop:
        yield from hidden_tokens(page, segment, start, stop)
    yield from (_token(page, digits, segment, run, index) for index in range(stop, run.stop))


def _token(page: Page, digits: int, segment: ShownSegment, run: Run, index: int) -> Text:
    line = gutter(page, digits, int(segment.position_ids[index]), run.trained)
    id, label = int(segment.input_ids[index]), int(segment.labels[index])
    numbers = f"{id:>{_NUMBER}}  {label:>{_NUMBER}}  "
    room = max(4, page.width - gutter_width(digits) - len(numbers) - 2)
    line.append(numbers, style="default" if run.trained else MASKED_STYLE)
    line.append(
        f"'{shortened(page, segment.texts[index], room)}'", style=TRAINED_STYLE if run.trained else MASKED_STYLE
    )
    return line
