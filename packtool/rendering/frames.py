"""Where all texts of a conversation stand, from one render with stand-ins for them.

Most templates only put frames around texts. Takes conversations of one shape, and gives the spans of their turns
where a render is those frames around the messages' own texts in exactly one way; else says that it is not.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from packtool.rendering.chat_template import TemplateError
from packtool.rendering.turn_edges import (
    Edges,
    Header,
    Marks,
    Message,
    Prefixes,
    Region,
    Render,
    TurnSpan,
    end_of_turn,
    find_header,
)

REASONING = ("reasoning_content", "reasoning", "thinking")
CALLS = "tool_calls"
SPOKEN = ("content", *REASONING, CALLS)
"""What a turn says; everything else in a message is how it is said, and stays when the text is replaced."""
_FIRST_STAND_IN = 0xF0000  # the private-use plane 15
_MOST_STAND_INS = 0xFFF0
_STAND_INS = re.compile(f"[{chr(_FIRST_STAND_IN)}-{chr(_FIRST_STAND_IN + _MOST_STAND_INS)}]")


_OPENING = re.compile(r"\s*<([A-Za-z_]+)>\s*")
_SPACE = re.compile(r"\s*")


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What of a message shapes its frame: everything but its texts.

    Made by ``shapes_of`` alone: equal ones are the same object, which is what makes them quick to look up.
    """

    role: str
    in_parts: bool = False
    """Whether the content is a list of one text part."""
    tags: tuple[str, str] | None = None
    """What stands around the reasoning, where the content begins with it."""
    reasons: tuple[str, ...] = ()
    """The names that its reasoning goes by, of which there is one text."""
    calls: bool = False
    valued: tuple[tuple[str, Any], ...] = ()
    """What else it holds: numbers, truth values and nulls."""
    named: tuple[str, ...] = ()
    """The names of what else it holds: strings."""

    def stand_in(self, index: int, message: Message) -> Message:
        """A message of this shape that says stand-ins."""
        reasoning, text = _stand_in(2 * index), _stand_in(2 * index + 1)
        if self.tags is not None:
            text = f"{self.tags[0]}{reasoning}{self.tags[1]}{text}"
        content: Any = [{"type": "text", "text": text}] if self.in_parts else text
        rest = {key: message[key] for key in message if key not in SPOKEN}
        return {**rest, **dict.fromkeys(self.reasons, reasoning), "content": content}

    def texts(self, message: Message) -> tuple[str, str]:
        """A message's reasoning and its answer; they are empty where it has none, or only the template knows it."""
        content: Any = message["content"] or ""
        text = str(content[0]["text"] if self.in_parts else content)
        if self.tags is not None and (tagged := _tagged(text)):
            return tagged.text, text[tagged.end :]
        return str(message[self.reasons[0]]) if self.reasons else "", text


def shapes_of(messages: Sequence[Message]) -> tuple[Shape, ...] | None:
    """The shapes of messages whose texts are known; None where one is of another kind."""
    if 2 * len(messages) > _MOST_STAND_INS:
        return None
    shapes: list[Shape] = []
    for message in messages:
        content = message.get("content")
        if len(message) == 2 and type(content) is str and _OPENING.match(content) is None:
            shape = _plain_shape(message.get("role"))
        else:
            shape = _shape(message)
        if shape is None:
            return None
        shapes.append(shape)
    return tuple(shapes)


def _shape(message: Message) -> Shape | None:
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        return None
    calls = bool(message.get(CALLS))
    in_parts = isinstance(content, list) and len(content) == 1 and content[0].keys() == {"type", "text"}
    if not isinstance(content, str) and not in_parts and not (content is None and calls and "content" in message):
        return None
    reasons = tuple(key for key in REASONING if message.get(key))
    if any(message[key] != message[reasons[0]] or not isinstance(message[key], str) for key in reasons):
        return None
    tagged = _tagged(content) if isinstance(content, str) and role == "assistant" and not reasons else None
    tags = None if tagged is None else tagged.tags
    rest = [(key, value) for key, value in message.items() if key not in SPOKEN and key != "role"]
    if any(not isinstance(value, str | int | float | None) for _, value in rest):
        return None
    valued = tuple((key, value) for key, value in rest if not isinstance(value, str))
    named = tuple(key for key, value in rest if isinstance(value, str))
    return _shape_of(role, in_parts, tags, reasons, calls, valued, named)


_shape_of = lru_cache(maxsize=4096)(Shape)


@lru_cache(maxsize=256)
def _plain_shape(role: Any) -> Shape | None:
    """The shape of a message that has a role and a text and nothing else."""
    return _shape_of(role, False, None, (), False, (), ()) if isinstance(role, str) else None


@dataclass(frozen=True, slots=True)
class _Tagged:
    """What a text has in a tag at its beginning, as reasoning that stands in the answer's own text is."""

    text: str
    tags: tuple[str, str]
    """What stands before and behind it, with white space."""
    end: int
    """Where the rest begins."""


def _tagged(text: str) -> _Tagged | None:
    opening = _OPENING.match(text)
    if opening is None:
        return None
    closing = f"</{opening[1]}>"
    place = text.find(closing, opening.end())
    said = text[opening.end() : max(place, opening.end())].rstrip()
    if not said:
        return None
    behind = _SPACE.match(text, place + len(closing))
    end = len(text) if behind is None else behind.end()
    return _Tagged(said, (opening[0], text[opening.end() + len(said) : end]), end)


def _stand_in(number: int) -> str:
    return chr(_FIRST_STAND_IN + number)


@dataclass(frozen=True, slots=True)
class _Slot:
    """One text in a render."""

    turn: int
    is_reasoning: bool
    is_loose: bool
    """Whether what stands there is made of the message's tool calls, in the template's own way."""


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What surrounds a turn; equal where turns reach equally far into it."""

    before: str
    after: str
    has_before: bool
    roles: tuple[str, ...]
    """Of the message before, the turn, and the message behind."""


class Frames:
    """What stands before, between and after the texts of conversations of one shape."""

    def __init__(
        self,
        shapes: tuple[Shape, ...],
        stand_ins: Sequence[Message],
        render: Render,
        rendered: str,
        slots: list[_Slot],
    ) -> None:
        """``rendered``: the render of ``stand_ins``; ``slots``: the texts in it, in order."""
        self._shapes = shapes
        self._stand_ins = stand_ins
        self._render = render
        self._rendered = rendered
        self._slots = slots
        self._frames = _STAND_INS.split(rendered)
        self._first = {slot.turn: number for number, slot in reversed(list(enumerate(slots)))}
        self._last = {slot.turn: number for number, slot in enumerate(slots)}
        self._is_loose = any(slot.is_loose for slot in slots)
        self._is_plain = all(shape is _plain_shape(shape.role) for shape in shapes)
        self._edges: dict[int, Edges] = {}

    @classmethod
    def of(cls, shapes: tuple[Shape, ...], messages: Sequence[Message], render: Render) -> "Frames | None":
        """Find them with stand-ins for the texts; None where the template does more than concatenate."""
        stand_ins = [shape.stand_in(index, messages[index]) for index, shape in enumerate(shapes)]
        try:
            rendered = render(stand_ins, False)
        except TemplateError:
            return None
        numbers = [ord(match[0]) - _FIRST_STAND_IN for match in _STAND_INS.finditer(rendered)]
        if any(one >= other for one, other in itertools.pairwise(numbers)):
            return None  # a text is printed twice, or texts in another order
        if [number // 2 for number in numbers if number % 2] != list(range(len(messages))):
            return None
        slots = [_Slot(n // 2, n % 2 == 0, n % 2 == 1 and shapes[n // 2].calls) for n in numbers]
        behind = _STAND_INS.split(rendered)[1:]
        if any(slot.is_loose and not frame.strip() for slot, frame in zip(slots, behind, strict=True)):
            return None  # nothing tells where what is made of tool calls ends
        return cls(shapes, stand_ins, render, rendered, slots)

    def spans(
        self, turns: Sequence[int], messages: Sequence[Message], rendered: str, marks: Marks
    ) -> dict[int, TurnSpan] | None:
        """The spans of ``turns``, if ``rendered`` is these frames around the texts of ``messages`` in one way only."""
        texts = self._texts(messages)
        ends = self._placed_loosely(texts, rendered) if self._is_loose else self._placed(texts, rendered)
        if ends is None:
            return None
        if not self._edges.keys() >= set(turns):
            self._look_into(turns, marks)
        spans: dict[int, TurnSpan] = {}
        for turn in turns:
            first, last = self._first[turn], self._last[turn]
            edges = self._edges[turn]
            start, stop = ends[2 * first], ends[2 * last + 1]
            begin = start - len(self._frames[first])
            header = edges.header
            skipped = header.of(rendered[begin:stop]) if header.closing else header.start
            if skipped is not None:
                start = begin + skipped
            elif self._slots[first].is_reasoning:
                return None  # what opens the reasoning belongs to the turn, and cannot be told from its frame
            spans[turn] = TurnSpan(start, stop + edges.after - edges.ends, stop + edges.after)
        return spans

    def _surroundings(self, turn: int) -> "_Surroundings":
        before, after = self._frames[self._first[turn]], self._frames[self._last[turn] + 1]
        roles = tuple(shape.role for shape in self._shapes[max(turn - 1, 0) : turn + 2])
        return _Surroundings(before, after, turn > 0, roles)

    def _look_into(self, turns: Sequence[int], marks: Marks) -> None:
        """Find how far ``turns`` reach into their frames: for equal surroundings once, where they first occur."""
        wanted = set(turns)
        prefixes = Prefixes(self._stand_ins, self._rendered, self._render, marks)
        first: dict[_Surroundings, int] = {}
        for turn in range(len(self._shapes)):
            surroundings = self._surroundings(turn)
            example = first.setdefault(surroundings, turn)
            if turn in wanted and turn not in self._edges:
                if example not in self._edges:
                    self._edges[example] = self._edges_of(example, surroundings, prefixes, marks)
                self._edges[turn] = self._edges[example]

    def _edges_of(self, turn: int, around: "_Surroundings", prefixes: Prefixes, marks: Marks) -> Edges:
        prompt = prefixes.prompt(turn)
        first = 2 * turn if self._slots[self._first[turn]].is_reasoning else 2 * turn + 1
        region = Region(self._rendered.index(_stand_in(first)), self._rendered.index(_stand_in(2 * turn + 1)) + 1)
        begin = region.start - len(around.before)
        header = Header(None)
        if self._shapes[turn].role == "assistant":
            base = prompt.base
            is_real = base is not None and self._rendered.startswith(base) and begin <= len(base) <= region.start
            low = len(base) if base is not None and is_real else begin
            header = find_header(self._rendered, low, region, prompt.text, marks).counted_from(begin)
        _, found, after_cut = (prefixes(turn + 1) or "").partition(_stand_in(2 * turn + 1))
        openers = partial(prefixes.openers, turn)
        reach = end_of_turn(around.after, after_cut if found else None, prompt.text, openers, marks)
        return Edges(header, reach, reach - marks.trailing(around.after[:reach]))

    def _texts(self, messages: Sequence[Message]) -> list[Any]:
        """The text in each slot; None where only the template knows it."""
        if self._is_plain:
            return [message["content"] for message in messages]
        said = [shape.texts(message) for shape, message in zip(self._shapes, messages, strict=True)]
        return [None if slot.is_loose else said[slot.turn][0 if slot.is_reasoning else 1] for slot in self._slots]

    def _placed(self, texts: Sequence[str], rendered: str) -> list[int] | None:
        """Where each text begins and ends in ``rendered``, one after the other; None where they do not fit."""
        pieces = [""] * (2 * len(texts) + 1)
        pieces[::2] = self._frames
        pieces[1::2] = texts
        if "".join(pieces) == rendered:
            return list(itertools.accumulate(map(len, pieces)))
        position = 0
        found: list[int] = []
        for text, frame, following in zip(texts, self._frames, self._frames[1:], strict=False):
            if not rendered.startswith(frame, position):
                return None
            position += len(frame)
            for candidate in (text, text.strip(), text.lstrip(), text.rstrip()):
                stop = position + len(candidate)
                if rendered.startswith(candidate, position) and rendered.startswith(following, stop):
                    break
            else:
                return None
            found += position, stop
            position = stop
        return found if position + len(self._frames[-1]) == len(rendered) else None

    def _placed_loosely(self, texts: Sequence[str | None], rendered: str) -> list[int] | None:
        """The same where some texts are not known: what stands between two of those is looked for."""
        trims: list[Callable[[str], str]] = [str, str.strip, str.lstrip, str.rstrip]
        for trim in trims:
            known = [None if text is None else trim(text) for text in texts]
            if (found := self._found_once(known, rendered)) is not None:
                return found
            if all(text is None or text == text.strip() for text in texts):
                break
        return None

    def _found_once(self, texts: Sequence[str | None], rendered: str) -> list[int] | None:
        literals = [""]
        for text, frame in zip(texts, self._frames, strict=False):
            literals[-1] += frame
            if text is None:
                literals.append("")
            else:
                literals[-1] += text
        literals[-1] += self._frames[-1]
        places = _only_places(literals, rendered)
        if places is None:
            return None
        found: list[int] = []
        rest = iter(places[1:])
        position = 0
        for text, frame in zip(texts, self._frames, strict=False):
            start = position + len(frame)
            position = next(rest) if text is None else start + len(text)
            found += start, position
        return found


def _only_places(literals: Sequence[str], text: str) -> list[int] | None:
    """Where ``literals`` stand in ``text``, which begins with the first, ends with the last and may have anything
    between them; None unless there is exactly one way."""
    last = len(text) - len(literals[-1])
    if not text.startswith(literals[0]) or not text.endswith(literals[-1]):
        return None
    earliest, at = [0], len(literals[0])
    for literal in literals[1:-1]:
        place = text.find(literal, at)
        if place < 0:
            return None
        earliest.append(place)
        at = place + len(literal)
    if at > last:
        return None
    latest, at = [last], last
    for literal in literals[-2:0:-1]:
        at = text.rfind(literal, 0, at)
        latest.append(at)
    # Of all ways, the one has each as early as can be, the other as late.
    return [*earliest, last] if [*earliest, last] == [0, *reversed(latest)] else None
