"""Dice, fragment files and scenes: takes hand-written fragments, gives sentences and paragraphs.

It does not know what kind of record the text is for.
"""

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

FRAGMENTS = Path(__file__).parent / "fragments"
LANGUAGES = ("de", "fr", "es", "pl", "tr", "ru", "el", "ar", "he", "hi", "zh", "ja", "ko", "vi")
UNSPACED = ("zh", "ja")
NAMED = {"place": "places", "person": "people"}  # slot, and the section with its names
OPENED_ONCE = ("letter", "story")  # sections whose first beat has one sentence: one greeting, one beginning

T = TypeVar("T")


class Dice:
    """Seeded choices that use `Random.random` alone, which gives the same numbers in every Python."""

    def __init__(self, seed: str) -> None:
        self._random = random.Random(seed)

    def below(self, n: int) -> int:
        return int(self._random.random() * n)

    def between(self, low: int, high: int) -> int:
        """A whole number from low to high, both included."""
        return low + self.below(high - low + 1)

    def chance(self, p: float) -> bool:
        return self._random.random() < p

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def shuffled(self, items: Sequence[T]) -> list[T]:
        left = list(items)
        return [left.pop(self.below(len(left))) for _ in items]

    def some(self, items: Sequence[T], n: int) -> list[T]:
        return self.shuffled(items)[:n]

    def length(self, median: float, sigma: float = 1.0) -> int:
        """A length with a lognormal spread; the bell curve is a sum of twelve uniform numbers."""
        bell = sum(self._random.random() for _ in range(12)) - 6.0
        return max(1, round(median * math.exp(sigma * bell)))


@dataclass(frozen=True, slots=True)
class Language:
    """One fragment file: its sections, each a block of text under a `== name` line."""

    code: str
    sections: dict[str, str]

    def lines(self, section: str) -> list[str]:
        return self.sections[section].splitlines()

    def beats(self, section: str) -> list[list[str]]:
        """Blocks in telling order; the lines of a block are alternatives."""
        return [block.splitlines() for block in self.sections[section].split("\n\n")]

    def questions(self) -> list[tuple[str, str]]:
        pairs = (item.partition("\n") for item in self.sections["qa"].split("\n--\n"))
        return [(question, answer) for question, _, answer in pairs]

    def words(self) -> list[str]:
        return self.sections["words"].split(", ")

    @property
    def name(self) -> str:
        return self.sections["name"]

    @property
    def space(self) -> str:
        return "" if self.code in UNSPACED else " "


def read_language(code: str) -> Language:
    text = (FRAGMENTS / f"{code}.txt").read_text(encoding="utf-8")
    sections: dict[str, str] = {}
    for part in re.split(r"^== ", text, flags=re.MULTILINE)[1:]:
        name, _, body = part.partition("\n")
        sections[name] = body.strip("\n")
    return Language(code, sections)


def read_items(name: str) -> list[tuple[str, str]]:
    """The items of a file with `--` lines between them, each as (first line, the rest)."""
    text = (FRAGMENTS / f"{name}.txt").read_text(encoding="utf-8").rstrip("\n")
    pairs = (item.partition("\n") for item in text.split("\n--\n"))
    return [(first, rest) for first, _, rest in pairs]


class Scene:
    """One subject: its names stay the same in every sentence."""

    def __init__(self, dice: Dice, language: Language) -> None:
        self.dice = dice
        self.language = language
        self.known: dict[str, str] = {}

    def expand(self, text: str) -> str:
        """`{a|b}` becomes one of the two, `{place}` a name or number, innermost braces first."""
        while match := re.search(r"\{([^{}]*)\}", text):
            inside = match[1]
            chosen = self.dice.pick(inside.split("|")) if "|" in inside else self.name(inside)
            text = text[: match.start()] + chosen + text[match.end() :]
        return text

    def name(self, slot: str) -> str:
        """What a slot stands for: a number is new each time, `person`, `person2` and `place` stay."""
        kind = slot.rstrip("23")
        if kind not in NAMED:
            return self._draw(kind)
        if slot not in self.known:
            value = self._draw(kind)
            while value in self.known.values():
                value = self._draw(kind)
            self.known[slot] = value
        return self.known[slot]

    def _draw(self, kind: str) -> str:
        dice = self.dice
        # Numbers are chosen so that the noun after them has one form in every language here:
        # five to nine, multiples of five, whole hundreds.
        if kind == "small":
            return str(dice.between(5, 9))
        if kind == "mid":
            return str(5 * dice.between(5, 19))
        if kind == "big":
            return str(100 * dice.between(3, 49))
        if kind == "year":
            return str(dice.between(1402, 1789))
        if kind == "later":
            return str(dice.between(1801, 1968))
        if kind == "hour":
            return str(dice.between(6, 11))
        return dice.pick(self.language.lines(NAMED[kind]))

    def telling(self, section: str, size: int) -> list[list[str]]:
        """About `size` characters of a section: for each of its beats, in order, the sentences told.

        Every beat may get a first sentence before any gets a second one; the sentences of a beat keep the
        order they have in the file.
        """
        beats = self.language.beats(section)
        chosen: list[dict[int, str]] = [{} for _ in beats]
        order = [0, *self.dice.shuffled(range(1, len(beats)))]
        left = size
        for turn in range(3):
            for i in order:
                if left <= 0 or turn >= len(beats[i]) or (turn and i == 0 and section in OPENED_ONCE):
                    continue
                line = self.dice.pick([k for k in range(len(beats[i])) if k not in chosen[i]])
                chosen[i][line] = self.expand(beats[i][line])
                left -= len(chosen[i][line])
        return [[said[k] for k in sorted(said)] for said in chosen]

    def prose(self, section: str, size: int) -> str:
        """A telling as paragraphs of two or three beats."""
        told = [self.language.space.join(beat) for beat in self.telling(section, size) if beat]
        paragraphs = [self.language.space.join(told[i : i + 3]) for i in range(0, len(told), 3)]
        return "\n\n".join(paragraphs)

    def verse(self, section: str, size: int) -> str:
        """A telling with every sentence on a line of its own."""
        return "\n".join(line for beat in self.telling(section, size) for line in beat)
