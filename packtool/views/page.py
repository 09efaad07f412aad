"""What the terminal's views share: characters, rules, headers, the gutter that tells trained from masked, folds.

Gives lines as rich ``Text``, each narrow enough for the page.
"""

from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass

import numpy as np
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from packtool.amounts import percent
from packtool.contract import IGNORED
from packtool.errors import printable
from packtool.inspection import Inspection, ShownPack, ShownSegment

WIDEST = 120
"""Cells of a line at most, however wide the terminal is."""
NARROWEST = 40
"""On a narrower terminal lines are broken."""

TRAINED_STYLE = "bold green"
MASKED_STYLE = "dim"
RULE_STYLE = "cyan"
FAULT_STYLE = "bold red"
NOTE_STYLE = "dim italic"

_MOST_SEGMENTS = 12
_FIRST_SEGMENTS, _LAST_SEGMENTS = 8, 3


@dataclass(frozen=True, slots=True)
class Glyphs:
    """The characters that draw; every encoding has those of ``ASCII``."""

    rule: str
    heavy_rule: str
    trained: str
    masked: str
    newline: str
    gap: str
    shades: str
    """From nothing to all, five."""


UNICODE = Glyphs("─", "━", "┃", "┊", "↵", "…", " ░▒▓█")
ASCII = Glyphs("-", "=", "|", ":", "\\n", "...", " .:+#")


@dataclass(frozen=True, slots=True)
class Page:
    """Where the views are laid out."""

    width: int
    encoding: str = "utf-8"
    full: bool = False
    """Whether nothing is folded."""

    @classmethod
    def of(cls, width: int, encoding: str, full: bool) -> "Page":
        """A page for a terminal so wide that writes in an encoding."""
        return cls(max(NARROWEST, min(width, WIDEST)), encoding, full)

    @property
    def glyphs(self) -> Glyphs:
        """What can be drawn with."""
        return UNICODE if _can_write(self.encoding, "".join(astuple(UNICODE))) else ASCII

    def text(self, text: str) -> str:
        """A text as it can be shown: on one line, with escapes for what does not print or cannot be written."""
        shown = printable(text)
        if _can_write(self.encoding, shown):
            return shown
        return "".join(c if _can_write(self.encoding, c) else ascii(c)[1:-1] for c in shown)


def _can_write(encoding: str, text: str) -> bool:
    try:
        text.encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return text.isascii()
    return True


@dataclass(frozen=True, slots=True)
class Gap:
    """Segments that are folded away."""

    first: int
    last: int


def pack_header(page: Page, inspection: Inspection, pack: ShownPack) -> Iterator[Text]:
    """Which pack it is, where it stands, and what is in it."""
    yield _rule(page.glyphs.heavy_rule, f"pack {pack.number:,}", page.width, f"bold {RULE_STYLE}")
    yield from wrapped(f"row {pack.row:,} of {pack.shard}, in {inspection.path} ({_packs(inspection.packs)})", page)
    documents = sum(not segment.is_padding for segment in pack.segments)
    padding = f", then {pack.padding:,} of padding" if pack.padding else ""
    yield from wrapped(
        f"{documents:,} {'segment' if documents == 1 else 'segments'}, {pack.tokens:,} of at most "
        f"{pack.max_length:,} tokens ({percent(pack.fill)}){padding}",
        page,
    )
    share = percent(pack.trained_tokens / pack.tokens) if pack.tokens else "0 %"
    yield from wrapped(f"{pack.trained_tokens:,} tokens train ({share})", page)


def _packs(count: int) -> str:
    return "its only pack" if count == 1 else f"packs 0 to {count - 1:,}"


def segment_header(page: Page, segment: ShownSegment) -> Iterator[Text]:
    """A rule across the page, and the facts of the segment."""
    place = "padding" if segment.is_padding else f"{page.text(segment.source or 'no source')}:{segment.line or '?'}"
    label = f"segment {segment.number:,} {page.glyphs.rule * 2} {place}"
    fits = cell_len(label) + 8 <= page.width
    yield _rule(page.glyphs.rule, label if fits else f"segment {segment.number:,}", page.width, RULE_STYLE)
    if not fits:
        yield from wrapped(place, page)
    facts = [] if segment.is_padding else [f"document {segment.doc_id}"]
    if segment.doc_offset:
        facts.append(f"piece from token {segment.doc_offset:,} on")
    facts.append("1 token" if segment.length == 1 else f"{segment.length:,} tokens")
    facts.append(f"positions {segment.position_ids[0]}..{segment.position_ids[-1]}")
    facts.append(f"{segment.trained_tokens:,} train" if segment.trained_tokens else "none train")
    yield from wrapped(", ".join(facts), page)
    for fault in segment.faults:
        yield from wrong(page, fault)


def wrong(page: Page, fault: str) -> Iterator[Text]:
    """What is not as it should be."""
    yield from wrapped(f"WRONG: {fault}", page, FAULT_STYLE)


def _rule(glyph: str, label: str, width: int, style: str) -> Text:
    begun = f"{glyph * 2} {label} "
    return Text(begun + glyph * max(2, width - cell_len(begun)), style=style)


def wrapped(told: str, page: Page, style: str = "default") -> Iterator[Text]:
    """A sentence on as many lines as it needs."""
    return (Text(line, style=style) for line in _words(page.text(told), page.width))


def _words(told: str, width: int) -> Iterator[str]:
    """Lines of whole words; a word longer than a line is cut."""
    line = ""
    for word in told.split(" "):
        candidate = f"{line} {word}" if line else word
        if cell_len(candidate) <= width:
            line = candidate
            continue
        if line:
            yield line
        *whole, line = cut(word, width)
        yield from whole
    yield line


def cut(text: str, width: int) -> Iterator[str]:
    """A printable text in parts of at most ``width`` cells; one empty part for an empty text."""
    part: list[str] = []
    room = width
    for character in text:
        size = cell_len(character)
        if size > room:
            yield "".join(part)
            part, room = [], width
        part.append(character)
        room -= size
    yield "".join(part)


def shortened(page: Page, text: str, width: int) -> str:
    """A text on one line of at most ``width`` cells; what is cut off is marked."""
    shown = page.text(text[: width + 1])
    if len(text) <= width and cell_len(shown) <= width:
        return shown
    return set_cell_size(shown, width - len(page.glyphs.gap)).rstrip() + page.glyphs.gap


def gutter(page: Page, digits: int, position: int | None, trained: bool, named: bool = True) -> Text:
    """The left edge of a line: the position of its first token, and whether its tokens train."""
    at = "" if position is None else str(position)
    name = ("TRAIN" if trained else "mask") if named else ""
    glyph = page.glyphs.trained if trained else page.glyphs.masked
    line = Text().append(f"{at:>{digits}} ", style=MASKED_STYLE)
    line.append(f"{name:<5} {glyph} ", style=TRAINED_STYLE if trained else MASKED_STYLE)
    return line


def gutter_width(digits: int) -> int:
    """Cells of the gutter."""
    return digits + len(" TRAIN | ")


def position_digits(segment: ShownSegment) -> int:
    """Characters that the positions of a segment need."""
    return max(5, len(str(segment.position_ids.max())), len(str(segment.position_ids.min())))


def legend(page: Page, *more: str) -> Iterator[Text]:
    """What the gutter says, for somebody who has never seen it; ``more``, apart, are sentences about the view."""
    for trained, told in (
        (True, "carries loss: the model learns to write it"),
        (
            False,
            "is only read (label -100); so is always a segment's first token, as nothing before it in its segment "
            "could predict it",
        ),
    ):
        for number, line in enumerate(_words(told, page.width - gutter_width(5))):
            drawn = gutter(page, 5, None, trained, number == 0)
            yield drawn.append(line, style=TRAINED_STYLE if trained else MASKED_STYLE)
    for sentence in more:
        yield from wrapped(sentence, page, MASKED_STYLE)


def folded(page: Page, pack: ShownPack, doc_id: int | None) -> list[ShownSegment | Gap]:
    """The segments of a pack to show, with gaps between; those of document ``doc_id`` alone where one is given."""
    segments = pack.segments
    if page.full:
        return list(segments)
    if doc_id is not None:
        kept = [segment.number for segment in segments if segment.doc_id == doc_id]
    elif len(segments) <= _MOST_SEGMENTS:
        return list(segments)
    else:
        kept = [*range(_FIRST_SEGMENTS), *range(len(segments) - _LAST_SEGMENTS, len(segments))]
        kept += [segment.number for segment in segments if segment.faults][:_MOST_SEGMENTS]
    return _with_gaps(segments, sorted(set(kept)))


def _with_gaps(segments: Sequence[ShownSegment], kept: list[int]) -> list[ShownSegment | Gap]:
    shown: list[ShownSegment | Gap] = []
    after = 0
    for number in [*kept, len(segments)]:
        if number > after:
            shown.append(Gap(after, number - 1))
        if number < len(segments):
            shown.append(segments[number])
        after = number + 1
    return shown


def gap_lines(page: Page, gap: Gap) -> Iterator[Text]:
    """What stands in place of segments."""
    which = f"segment {gap.first:,} is" if gap.first == gap.last else f"segments {gap.first:,} to {gap.last:,} are"
    yield from wrapped(f"{page.glyphs.gap} {which} not shown; see --full", page, NOTE_STYLE)


def hidden_tokens(page: Page, segment: ShownSegment, start: int, stop: int) -> Iterator[Text]:
    """What stands in place of the tokens [start, stop) of a segment; of a part of one token, where there are none."""
    trained = int(np.count_nonzero(segment.labels[start:stop] != IGNORED))
    count = stop - start
    kind = "" if 0 < trained < count else "trained " if trained else "masked "
    told = f"{count:,} {kind}{'token' if count == 1 else 'tokens'}" if count else "the rest of a token"
    if 0 < trained < count:
        told += f", {trained:,} of them trained,"
    indent = " " * position_digits(segment)
    lines = _words(f"{page.glyphs.gap} {told} not shown; see --full", page.width - len(indent) - 1)
    return (Text(f"{indent} {line}", style=NOTE_STYLE) for line in lines)
