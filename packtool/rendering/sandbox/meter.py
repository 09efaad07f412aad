"""What a render may cost: two budgets that are counts, and every bound that a template runs into. Knows no template."""

from collections.abc import Iterable
from typing import Any, NoReturn

import jinja2

MAX_SOURCE = 1 << 18
"""Characters in a template's source: a few seconds of compiling. The longest that people use have 20,000."""

BASE_STEPS = 8_000_000
"""Steps any render may take: about a node of the template visited, or an item of a list. A second or two."""

BASE_CHARACTERS = 1 << 30
"""Characters any render may read. Making one counts as reading ``MADE``, so 64 million of them."""

MADE = 16
"""What making a character costs, as so many characters read: time is bounded by both, memory by what is made."""

MAX_CALL_DEPTH = 100
"""Macros and recursive loops within one another: well below where Python itself would stop."""

MAX_NESTING = 100
"""Lists and dicts within one another, in the data and again in what a template builds of it."""

MAX_LAZY_NESTING = 50
"""Lazy filters (``map``, ``select``, ...) fed by one another."""

MAX_WIDTH = 1_000
"""A width or precision in a format (``%9d``, ``{:>9}``), an indentation of JSON."""

MAX_INTEGER = 1 << 2048
"""No integer, given or computed, reaches this: products of numbers at the limit still cost next to nothing."""

MAX_OTHER_KEYS = 128
"""Keys in one dict made by a template that are not text: numbers can be chosen so that all of them collide."""

ITEM = 8
"""What an item of a list or dict weighs, in characters."""

LONG = 64
"""Characters from which on comparing a text is paid for, where it is frequent."""

CALL_STEPS = 8
"""What a call or an item through a lazy filter costs, beside what is called."""


class LimitReached(jinja2.TemplateRuntimeError):
    """A template asked for more than a bound of this module allows."""


class Meter:
    """The two budgets of one render, and how deep it is in calls.

    A budget has a fixed base and grows with the size of the data, so that long conversations keep their due and a
    template's tricks on a short one end soon.
    """

    __slots__ = ("characters", "depth", "steps")

    def __init__(self) -> None:
        self.start(0)

    def start(self, size: int) -> None:
        """Begin a render over data of ``size`` characters (see ``weigh_plain``)."""
        # The middle terms let a template walk all of 1,000 messages once for each, or copy its whole text so.
        self.steps = BASE_STEPS + min(size << 9, 16 * BASE_STEPS) + size
        self.characters = BASE_CHARACTERS + min(size << 14, 16 * BASE_CHARACTERS) + (size << 8)
        self.depth = 0

    def step(self, count: int) -> None:
        """Pay for ``count`` steps."""
        self.steps -= count
        if self.steps < 0:
            self.too_long()

    def read(self, count: int) -> None:
        """Pay for reading ``count`` characters."""
        self.characters -= count
        if self.characters < 0:
            raise LimitReached("it reads too much text")

    def made(self, count: int) -> None:
        """Pay for making ``count`` characters, before they are made."""
        self.characters -= MADE * count
        if self.characters < 0:
            raise LimitReached("it makes too much text, or lists too long")

    def too_long(self) -> NoReturn:
        """Say that the steps are used up."""
        raise LimitReached("it runs too long")

    def enter(self) -> None:
        """Go one call deeper; ``depth`` is taken back by whoever called."""
        self.depth += 1
        if self.depth > MAX_CALL_DEPTH:
            raise LimitReached(f"it has more than {MAX_CALL_DEPTH} calls within one another")


def check_widths(numbers: Iterable[str]) -> None:
    """Refuse widths of a format, given as digits, that are too large."""
    for number in numbers:
        if len(number) > 9 or int(number or 0) > MAX_WIDTH:
            raise LimitReached(f"a format has a width above {MAX_WIDTH:,}")


def small_enough(number: Any) -> Any:
    """A number, refused where it is too large; anything else as it is."""
    if isinstance(number, int) and not -MAX_INTEGER < number < MAX_INTEGER:
        raise LimitReached("it computes too large a number")
    return number


def search_cost(length: int, wanted: int, *, backwards: bool = False) -> int:
    """Characters read, in the worst case, in searching a text: backwards Python knows no better than trying."""
    return length * (1 + (wanted if backwards else min(wanted, 128)) // 4)
