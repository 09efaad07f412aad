"""What surrounds a turn in a render: its role header, and what ends it; from the template's own behaviour.

Takes renders and where a turn's text stands in them. Knows nothing of messages but their roles, and nothing of
tokens but which strings are special.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from packtool.rendering.chat_template import TemplateError

Message = Mapping[str, Any]
Render = Callable[[Sequence[Message], bool], str]
"""(messages, add_generation_prompt) -> text; raises TemplateError where the template refuses."""

_STUB = re.compile(r"(?<=[^<])<([A-Za-z_]+)>\s*(?:</\1>\s*)?$")
"""A tag that is opened at the end of a generation prompt, and perhaps closed at once."""
_MARKER = re.compile(r"<[^<>\s]{1,60}>|\[[^\[\]<>\s]{1,60}\]")
"""What a special token looks like, for tokenizers that do not have the template's own."""
_LONGEST_MARK = 256


class Unprovable(Exception):
    """A turn's span does not follow from the template's behaviour; its text says why, in one line."""


class TurnSpan(NamedTuple):  # quicker to make than a frozen dataclass, and made for each turn of the input
    """Where a turn stands in the rendered text, or one piece of it; half-open characters."""

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


def common_prefix(a: str, b: str) -> int:
    """How many characters a and b have in common at their starts."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # by halving: slices compare at memory speed
        middle = (low + high + 1) // 2
        if a[:middle] == b[:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def common_suffix(a: str, b: str) -> int:
    """How many characters a and b have in common at their ends."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[len(a) - middle :] == b[len(b) - middle :]:
            low = middle
        else:
            high = middle - 1
    return low


class Marks:
    """What special tokens look like in a text."""

    def __init__(self, special: re.Pattern[str] | None) -> None:
        self._special = special

    def first(self, text: str) -> re.Match[str] | None:
        """The first special token; where the tokenizer has none there, the first thing that looks like one."""
        return (self._special.search(text) if self._special else None) or _MARKER.search(text)

    def opens(self, text: str) -> bool:
        """Whether ``text`` begins with a special token, or what looks like one."""
        return any(pattern is not None and pattern.match(text) for pattern in (self._special, _MARKER))

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
            # No special token is longer than a line or so, and what starts far before cannot reach here.
            begin = max(0, at - _LONGEST_MARK)
            for match in pattern.finditer(text, begin) if pattern else ():
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


@dataclass(frozen=True, slots=True)
class Prompt:
    """What ``add_generation_prompt`` adds."""

    text: str
    """Empty where the template does not heed it."""
    base: str | None = None
    """What stands before it; None where that is not the conversation before the turn in question."""
    is_added: bool = True
    """Whether it stands behind all that is printed without it, rather than in the place of some."""

    @classmethod
    def of(cls, without: str, with_prompt: str, marks: Marks) -> Self:
        """From the renders of one conversation without it and with it."""
        at = len(without)
        if not with_prompt.startswith(without):  # a conversation that asks for nothing ends in another way
            at = marks.before_torn(with_prompt, common_prefix(without, with_prompt))
        return cls(with_prompt[at:], with_prompt[:at], at == len(without))


@dataclass(frozen=True, slots=True)
class Header:
    """Where a turn begins; None where its role header is not found."""

    start: int | None
    closing: str = ""
    """The closing tag of a reasoning stub in the generation prompt."""
    start_if_closed: int | None = None
    """Where the turn begins if it holds that tag."""

    def counted_from(self, begin: int) -> "Header":
        """The same, counted from another character."""
        starts = [None if start is None else start - begin for start in (self.start, self.start_if_closed)]
        return Header(starts[0], self.closing, starts[1])

    def of(self, spoken: str) -> int | None:
        """Where it begins, given the text from the message before to its end."""
        return self.start_if_closed if self.closing and self.closing in spoken else self.start


def find_header(text: str, low: int, region: Region, prompt: str, marks: Marks) -> Header:
    """Where the role header ends in ``text`` and the turn begins.

    Args:
        text: the render.
        low: where the message before ends.
        region: where the turn's own text stands.
        prompt: the generation prompt.
        marks: the special tokens.
    """
    stub = _STUB.search(prompt)
    if stub is None or not prompt[: stub.start()].strip():
        return Header(_header_stop(text, low, region, prompt, marks))
    # A reasoning stub is closed in the turn, or the turn does without; else it is how this template writes roles.
    without_stub = _header_stop(text, low, region, prompt[: stub.start()], marks)
    is_absent = f"<{stub[1]}>" not in text[low : region.start] and not marks.is_special(f"<{stub[1]}>")
    start = without_stub if is_absent else _header_stop(text, low, region, prompt, marks)
    return Header(start, f"</{stub[1]}>", without_stub)


def _header_stop(text: str, low: int, region: Region, header: str, marks: Marks) -> int | None:
    for stop in marks.boundaries(header):
        known, rest = header[:stop], header[stop:]
        place = text.rfind(known, low, region.start) if known.strip() else -1
        if place < 0:
            continue
        is_whole = text.startswith(header, place) and place + len(header) <= region.stop
        if is_whole and rest and not marks.opens(rest):
            # The two renders that bound the text differ within the header. A token behind it, such as one that
            # opens a channel for reasoning, is no part of the header: another turn goes on without it.
            return place + len(header)
        if rest.strip() and not is_whole and not marks.opens(rest.lstrip()):
            # What opens every turn stands there, but the role behind it is not the prompt's.
            raise Unprovable("the role header of a turn is not the one that the generation prompt gives")
        return place + stop
    return None


def end_of_turn(whole: str, cut: str | None, prompt: str, openers: Callable[[], str], marks: Marks) -> int:
    """How many characters of ``whole`` end the turn.

    Args:
        whole: what follows the turn's text in the conversation.
        cut: what follows it where the conversation is cut off after the turn; None where nobody can say.
        prompt: the generation prompt.
        openers: gives what opens a turn, and so ends none.
        marks: the special tokens.
    """
    agreed = "" if cut is None else whole[: common_prefix(whole, cut)]
    if prompt and cut is not None:
        if stop := marks.last_whole(agreed):
            return stop
        if len(agreed) < max(len(whole), len(cut)):
            longer = whole if len(agreed) < len(whole) else cut
            agreed = agreed[: marks.before_torn(longer, len(agreed))]
        if agreed.strip():
            return len(agreed.rstrip())
    # The template goes on in the same way whatever follows; or they agree on nothing.
    match = marks.first(whole)
    if match is None or whole[: match.start()].strip() or match[0] in openers():
        return 0
    # A turn that ends in white space alone has no end; what comes behind that is the header of the next message.
    return 0 if match.start() and cut is not None and not cut.strip() else match.end()


@dataclass(frozen=True, slots=True)
class Edges:
    """How far a turn reaches beyond its text: characters of the frame before it and after it."""

    header: Header
    """Counted from the start of the frame before."""
    after: int
    ends: int
    """Of ``after``, those that are the end of turn."""


class Prefixes:
    """The renders of a conversation cut off after so many messages, each made once."""

    def __init__(self, messages: Sequence[Message], rendered: str, render: Render, marks: Marks) -> None:
        self._messages = messages
        self._render = render
        self._marks = marks
        self._known: dict[tuple[int, bool], str | None] = {(len(messages), False): rendered}

    def __call__(self, count: int, prompt: bool = False) -> str | None:
        """The render of the first ``count`` messages; None where the template refuses them."""
        if (count, prompt) not in self._known:
            try:
                self._known[count, prompt] = self._render(self._messages[:count], prompt)
            except TemplateError:
                self._known[count, prompt] = None
        return self._known[count, prompt]

    def prompt(self, turn: int) -> Prompt:
        """What ``add_generation_prompt`` adds before ``turn``, or elsewhere if the template adds nothing there."""
        here = self._prompt_after(turn)
        if here is not None and here.text and here.is_added:
            return here
        found = [prompt for prompt in (here, *self._elsewhere(turn)) if prompt is not None and prompt.text]
        added = [prompt for prompt in found if prompt.is_added]
        best = (added or found or [Prompt("")])[0]
        return Prompt(best.text, None if here is None else here.base, best.is_added)

    def openers(self, turn: int) -> str:
        """All that it is found to add in the conversation: what opens a turn, and so ends none."""
        found = (self._prompt_after(turn), *self._elsewhere(turn))
        return "".join(prompt.text for prompt in found if prompt is not None and prompt.is_added)

    def _elsewhere(self, turn: int) -> "list[Prompt | None]":
        # A template may refuse to render no messages at all, or a conversation without a question.
        asked = [index + 1 for index, message in enumerate(self._messages) if message.get("role") == "user"][:1]
        return [self._prompt_after(count) for count in dict.fromkeys((*asked, turn + 1, len(self._messages)))]

    def _prompt_after(self, count: int) -> Prompt | None:
        without, with_prompt = self(count), self(count, True)
        if without is None or with_prompt is None:
            return None
        return Prompt.of(without, with_prompt, self._marks)


def difference(ours: str, other: str, marks: Marks) -> Region | str:
    """Where ``ours`` differs from the render with a stand-in; "torn" where it has nothing that stands for that."""
    # What they have in common never goes past the stand-in, which is in one of the two only.
    start = marks.before_torn(ours, common_prefix(ours, other))
    stop = marks.before_torn(ours, len(ours) - common_suffix(ours, other))
    if stop < start:
        # Both ends may claim the white space that stands around no text.
        return "torn" if ours[stop:start].strip() else Region(start, start)
    return Region(start, stop)
