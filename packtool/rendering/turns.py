"""Where a chat template puts each turn: found from the template's own behaviour, with no table of families.

Takes a template and one conversation, gives for chosen turns the character span that the model would have to
produce: the turn's text, reasoning and tool calls, and its end of turn; never the role header. Every span is
checked against the one real render. Knows nothing of tokens but which strings are special.

The method, for turn i of a conversation whose render is R:

- its text: render again with the turn's text replaced by a private-use character that occurs nowhere. What the
  two renders have in common before and after it bounds the text, whatever the template does to other turns.
- its role header: what ``add_generation_prompt`` adds to the conversation before the turn, less a reasoning
  stub (``<think>``) at its end, which the model might as well produce.
- its end: what follows the text in R, and in the render of the conversation cut off after the turn, agree for a
  stretch, and the whole special tokens in it end the turn.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packtool.rendering.chat_template import TemplateError

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], bool], str]
"""(messages, add_generation_prompt) -> text; raises TemplateError where the template refuses."""

_SPOKEN = ("content", "reasoning_content", "reasoning", "thinking", "tool_calls")
"""What a turn says; everything else in a message is how it is said, and stays when the text is replaced."""
_STUB = re.compile(r"(?<=[^<])<([A-Za-z_]+)>\s*(?:</\1>\s*)?$")
"""A tag that is opened at the end of a generation prompt, and perhaps closed at once."""
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]\s]{1,60}\]")
"""What a special token looks like, for tokenizers that do not have the template's own."""


class Unprovable(Exception):
    """A turn's span does not follow from the template's behaviour; its text says why, in one line."""


@dataclass(frozen=True, slots=True)
class TurnSpan:
    """Where a turn stands in the rendered text; half-open characters."""

    start: int
    """After the role header."""
    text_stop: int
    """Where the turn's own text ends, tool calls included."""
    stop: int
    """After the end of turn."""


@dataclass(frozen=True, slots=True)
class Region:
    """Where a text stands in a render; half-open characters."""

    start: int
    stop: int


class TurnFinder:
    """Finds turns of conversations rendered with one template.

    Remembers the frames (what stands between the texts) of sequences of roles, so that a template that only
    concatenates is rendered once a conversation, and a sequence of roles is looked into once.
    """

    def __init__(self, special_tokens: Iterable[str]) -> None:
        """``special_tokens``: the tokenizer's, as text."""
        ordered = sorted({token for token in special_tokens if token}, key=len, reverse=True)
        self._marks = _Marks(re.compile("|".join(map(re.escape, ordered))) if ordered else None)
        self._frames: dict[tuple[tuple[str, ...], frozenset[int]], _Frames | None] = {}

    def find(
        self, messages: Sequence[Message], rendered: str, render: Render, turns: Iterable[int], *, plain: bool
    ) -> dict[int, TurnSpan]:
        """The spans of ``turns``, indices into ``messages``, in ``rendered``, which is ``render(messages, False)``.

        Args:
            messages: the conversation.
            rendered: its real render.
            render: the template, with this conversation's tools and variables.
            turns: which turns to find.
            plain: whether the conversation has no tools or variables of its own that could change frames.

        Raises:
            Unprovable: a span does not follow.
        """
        wanted = frozenset(turns)
        if plain and all(_is_plain(message) for message in messages):
            key = (tuple(str(message["role"]) for message in messages), wanted)
            if key not in self._frames:
                if len(self._frames) >= _REMEMBERED:
                    self._frames.clear()
                self._frames[key] = _Frames.of(key[0], wanted, render, self._marks)
            frames = self._frames[key]
            if frames is not None and (spans := frames.place(messages, rendered)) is not None:
                return spans
        conversation = _Conversation(messages, rendered, render, self._marks)
        return {turn: conversation.span(turn) for turn in sorted(wanted)}

    def find_part(self, messages: Sequence[Message], rendered: str, render: Render, turn: int, part: int) -> Region:
        """Where the text of one content part of a turn stands.

        Raises:
            Unprovable: it does not follow.
        """
        parts = list(messages[turn]["content"])
        return _Conversation(messages, rendered, render, self._marks).part(turn, part, parts)


_REMEMBERED = 4_096


def _is_plain(message: Message) -> bool:
    return len(message) == 2 and isinstance(message.get("content"), str) and isinstance(message.get("role"), str)


def _common_prefix(a: str, b: str) -> int:
    """How many characters a and b have in common at their starts."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # by halving: slices compare at memory speed
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_suffix(a: str, b: str) -> int:
    """How many characters a and b have in common at their ends."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle :] == b[len(b) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


class _Marks:
    """What special tokens look like in a text."""

    def __init__(self, special: re.Pattern[str] | None) -> None:
        self._special = special

    def first(self, text: str) -> re.Match[str] | None:
        """The first special token; where the tokenizer has none there, the first thing that looks like one."""
        return (self._special.search(text) if self._special else None) or _MARKER.search(text)

    def is_special(self, text: str) -> bool:
        return self._special is not None and self._special.fullmatch(text) is not None

    def last_whole(self, text: str) -> int:
        """Where the last special token in ``text`` ends; 0 where there is none."""
        stop = 0
        for match in self._special.finditer(text) if self._special else ():
            stop = match.end()
        return stop

    def before_torn(self, text: str, at: int) -> int:
        """``at``, or the start of the special token or marker of ``text`` that ``at`` is inside of."""
        for pattern in (self._special, _MARKER):
            for match in pattern.finditer(text) if pattern else ():
                if match.start() < at < match.end():
                    return match.start()
                if match.start() >= at:
                    break
        return at

    def boundaries(self, text: str) -> list[int]:
        """Where a newline or a special token ends in ``text``, and its end; falling."""
        ends = {index + 1 for index, character in enumerate(text) if character == "\n"}
        ends.update(match.end() for match in (self._special.finditer(text) if self._special else ()))
        return sorted({*ends, len(text)}, reverse=True)

    def trailing(self, text: str) -> int:
        """Where the run of special tokens at the end of ``text`` begins; its length where there is none."""
        if self._special is None:
            return len(text)
        begin = len(text)
        for match in reversed(list(self._special.finditer(text))):
            if text[match.end() : begin].strip():
                break
            begin = match.start()
        return begin


def _header_stop(between: str, prompt: str, turn: str, marks: _Marks) -> int | None:
    """Where the role header ends in ``between``, the text from the message before to this turn's text.

    Args:
        between: what stands before the turn's text, back to the message before.
        prompt: the generation prompt.
        turn: ``between`` and the turn's text.
        marks: the special tokens.

    Returns:
        An index into ``between``; None where no part of the prompt stands there.
    """
    stub = _STUB.search(prompt)
    if stub and prompt[: stub.start()].strip() and not marks.is_special(tag := f"<{stub[1]}>"):
        is_closed_or_absent = f"</{stub[1]}>" in turn or tag not in between  # else it is part of the header
        prompt = prompt[: stub.start()] if is_closed_or_absent else prompt
    for stop in marks.boundaries(prompt):
        header = prompt[:stop]
        if header.strip() and (place := between.rfind(header)) >= 0:
            return place + len(header)
    return None


def _end_of_turn(whole: str, cut: str, has_prompt: bool, marks: _Marks) -> int:
    """How many characters of ``whole`` end the turn.

    Args:
        whole: what follows the turn's text in the conversation.
        cut: what follows it where the conversation is cut off after the turn.
        has_prompt: whether the template heeds ``add_generation_prompt``.
        marks: the special tokens.
    """
    if has_prompt:
        agreed = whole[: _common_prefix(whole, cut)]
        if stop := marks.last_whole(agreed):
            return stop
        if len(agreed) < max(len(whole), len(cut)):
            longer = whole if len(agreed) < len(whole) else cut
            agreed = agreed[: marks.before_torn(longer, len(agreed))]
        if agreed.strip():
            return len(agreed.rstrip())
    match = marks.first(whole)
    return match.end() if match and not whole[: match.start()].strip() else 0


def _prompt_of(without: str, with_prompt: str, marks: _Marks) -> str:
    """The generation prompt: what a render has with it that it has not without."""
    if with_prompt.startswith(without):
        return with_prompt[len(without) :]
    return with_prompt[marks.before_torn(with_prompt, _common_prefix(without, with_prompt)) :]


def _try(render: Render, messages: Sequence[Message], prompt: bool) -> str | None:
    try:
        return render(messages, prompt)
    except TemplateError:
        return None


def _generation_prompt(messages: Sequence[Message], turn: int, render: Render, marks: _Marks) -> str:
    """What ``add_generation_prompt`` adds to the conversation before ``turn``; empty where it adds nothing."""
    for stop in (turn, turn + 1):
        # A template may refuse to render no messages at all; after the turn it adds the same.
        without, with_prompt = _try(render, messages[:stop], False), _try(render, messages[:stop], True)
        if without is not None and with_prompt is not None:
            return _prompt_of(without, with_prompt, marks)
    return ""


@dataclass(frozen=True, slots=True)
class _Edges:
    """How far a turn reaches beyond its text: characters of the frame before it and after it."""

    before: int
    after: int
    ends: int
    """Of ``after``, those that are the end of turn."""


@dataclass(frozen=True, slots=True)
class _Frames:
    """What stands before, between and after the texts of a sequence of roles, and how far its turns reach."""

    frames: tuple[str, ...]
    edges: Mapping[int, _Edges]

    @classmethod
    def of(cls, roles: tuple[str, ...], turns: frozenset[int], render: Render, marks: _Marks) -> "_Frames | None":
        """Find them with stand-ins for the texts; None where the template does more than concatenate."""
        if len(roles) > _MOST_STAND_INS:
            return None
        messages = [{"role": role, "content": _stand_in(index)} for index, role in enumerate(roles)]
        rendered = _try(render, messages, False)
        frames = None if rendered is None else _split(rendered, len(roles))
        if rendered is None or frames is None:
            return None
        edges: dict[int, _Edges] = {}
        for turn in turns:
            cut = rendered if turn == len(roles) - 1 else _try(render, messages[: turn + 1], False)
            if cut is None or _stand_in(turn) not in cut:
                return None
            after_cut = cut.rpartition(_stand_in(turn))[2]
            prompt = _generation_prompt(messages, turn, render, marks)
            before, after = frames[turn], frames[turn + 1]
            header = None
            if roles[turn] == "assistant" and prompt:
                header = _header_stop(before, prompt, before, marks)
            start = len(before) if header is None else header
            reach = _end_of_turn(after, after_cut, bool(prompt), marks)
            edges[turn] = _Edges(len(before) - start, reach, reach - marks.trailing(after[:reach]))
        return cls(frames, edges)

    def place(self, messages: Sequence[Message], rendered: str) -> dict[int, TurnSpan] | None:
        """The turns' spans, if ``rendered`` is these frames around the messages' texts, trimmed or not."""
        position = 0
        spans: dict[int, TurnSpan] = {}
        for index, message in enumerate(messages):
            frame, following = self.frames[index], self.frames[index + 1]
            if not rendered.startswith(frame, position):
                return None
            position += len(frame)
            text = message["content"]
            for candidate in (text, text.strip(), text.lstrip(), text.rstrip()):
                stop = position + len(candidate)
                if rendered.startswith(candidate, position) and rendered.startswith(following, stop):
                    break
            else:
                return None
            if index in self.edges:
                edges = self.edges[index]
                end = stop + edges.after
                spans[index] = TurnSpan(position - edges.before, end - edges.ends, end)
            position = stop
        return spans if position + len(self.frames[-1]) == len(rendered) else None


_FIRST_STAND_IN = 0xF0000  # the private-use plane 15
_MOST_STAND_INS = 0xFFF0


def _stand_in(index: int) -> str:
    return chr(_FIRST_STAND_IN + index)


def _split(rendered: str, count: int) -> tuple[str, ...] | None:
    """The frames around ``count`` stand-ins; None unless each stands there once, in order."""
    frames: list[str] = []
    rest = rendered
    for index in range(count):
        before, found, rest = rest.partition(_stand_in(index))
        if not found:
            return None
        frames.append(before)
    frames.append(rest)
    alone = sum(_FIRST_STAND_IN <= ord(character) < _FIRST_STAND_IN + count for character in rendered) == count
    return tuple(frames) if alone else None


class _Conversation:
    """One conversation looked into by itself, whatever its template does."""

    def __init__(self, messages: Sequence[Message], rendered: str, render: Render, marks: _Marks) -> None:
        self._messages = messages
        self._rendered = rendered
        self._render = render
        self._marks = marks
        self._regions: dict[int, tuple[Region, Message]] = {}
        self._unused = self._unused_character()

    def span(self, turn: int) -> TurnSpan:
        """The span of a turn, or Unprovable."""
        region, replaced = self._region(turn)
        rendered, marks = self._rendered, self._marks
        prompt = _generation_prompt(self._messages, turn, self._render, marks)
        low, high = self._neighbours(turn, region, prompt)
        start = region.start
        if self._messages[turn].get("role") == "assistant" and prompt:
            header = _header_stop(rendered[low : region.start], prompt, rendered[low : region.stop], marks)
            start = region.start if header is None else low + header
        after_cut = self._after_cut(turn, replaced)
        reach = _end_of_turn(rendered[region.stop :], after_cut, bool(prompt), marks)
        stop = region.stop + reach
        if turn + 1 < len(self._messages) and stop > high:
            raise Unprovable(f"message {turn + 1}: its end of turn cannot be told from the next message")
        text_stop = region.stop + marks.trailing(rendered[region.stop : stop])
        return TurnSpan(start, text_stop, stop)

    def part(self, turn: int, part: int, parts: list[Any]) -> Region:
        """Where one part's text stands."""
        changed = [*parts]
        changed[part] = {**parts[part], "text": self._unused}
        region = self._compare(turn, {**self._messages[turn], "content": changed})
        if region is None:
            raise Unprovable(f"message {turn + 1}: the template does not say where part {part + 1} of it stands")
        return region

    def _region(self, turn: int) -> tuple[Region, Message]:
        """Where a message's own text stands, and the message with that text replaced."""
        if turn not in self._regions:
            for replaced in self._replaced(self._messages[turn]):
                region = self._compare(turn, replaced)
                if region is not None:
                    self._regions[turn] = region, replaced
                    break
            else:
                raise Unprovable(f"message {turn + 1}: the template does not print its text where it can be found")
        return self._regions[turn]

    def _replaced(self, message: Message) -> list[Message]:
        """The message saying something else: all it says as one text; or every string in it; or its content alone."""
        silent = {key: value for key, value in message.items() if key not in _SPOKEN}
        content = message.get("content")
        said: Any = [{"type": "text", "text": self._unused}] if isinstance(content, list) else self._unused
        variants: list[Message] = [{**silent, "content": said}]
        if any(message.get(key) for key in _SPOKEN[1:]):
            deep = {key: self._deep(value) for key, value in message.items() if key in _SPOKEN}
            variants.append({**message, **deep})
            variants.append({**message, "content": said})
        return variants

    def _deep(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._unused if value else value
        if isinstance(value, list):
            return [self._deep(entry) for entry in value]
        if isinstance(value, dict):
            # What a template decides by stays: types and ids are no text of the turn's.
            return {key: entry if key in ("type", "id") else self._deep(entry) for key, entry in value.items()}
        return value

    def _compare(self, turn: int, replaced: Message) -> Region | None:
        messages = [*self._messages]
        messages[turn] = replaced
        other = _try(self._render, messages, False)
        if other is None or self._unused not in other:
            return None
        ours = self._rendered
        # Neither goes past the stand-in, which is in one of the two only; where they meet in a short text, the end
        # decides, since what follows the stand-in is all of what follows the text.
        stop = len(ours) - _common_suffix(ours, other)
        return Region(min(_common_prefix(ours, other), stop), stop)

    def _after_cut(self, turn: int, replaced: Message) -> str:
        """What follows the turn's text where the conversation is cut off after it."""
        if turn == len(self._messages) - 1:
            return self._rendered[self._regions[turn][0].stop :]
        ours = _try(self._render, self._messages[: turn + 1], False)
        other = _try(self._render, [*self._messages[:turn], replaced], False)
        if ours is None or other is None or self._unused not in other:
            return ""  # they agree on nothing then, and the first special token ends the turn
        behind = other.rpartition(self._unused)[2]
        return behind[len(behind) - _common_suffix(ours, behind) :]

    def _neighbours(self, turn: int, region: Region, prompt: str) -> tuple[int, int]:
        """Between which characters the turn must lie: the end of the text before, the start of the text behind."""
        low, high = 0, len(self._rendered)
        if turn > 0:
            before = _try(self._render, self._messages[:turn], True)
            known = None if before is None else before[: len(before) - len(prompt)]
            if known and self._rendered.startswith(known):
                low = len(known)
            else:
                low = self._printed(range(turn - 1, -1, -1), low, first=False)
        if turn + 1 < len(self._messages):
            high = self._printed(range(turn + 1, len(self._messages)), high, first=True)
        if not low <= region.start <= region.stop <= high:
            raise Unprovable(f"message {turn + 1}: its text cannot be told from that of other messages")
        return low, high

    def _printed(self, turns: Iterable[int], otherwise: int, *, first: bool) -> int:
        """Where the nearest message that is printed begins (``first``), or ends."""
        for turn in turns:
            try:
                region, _ = self._region(turn)
            except Unprovable:
                continue  # not every message is printed
            return region.start if first else region.stop
        return otherwise

    def _unused_character(self) -> str:
        said = f"{self._rendered}{self._messages!r}"
        for code in range(0xE000, 0xF900):
            if chr(code) not in said and f"\\u{code:04x}" not in said:
                return chr(code)
        raise Unprovable("the conversation uses every private-use character")
