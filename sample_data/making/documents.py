"""Plain documents: takes dice and the fragments, gives the texts of text.jsonl."""

import json
import re
from collections.abc import Callable
from datetime import timedelta

from making import computed
from making.grammar import LANGUAGES, Dice, Language, Scene, read_items, read_language

MEDIAN = 780  # characters; about 250 tokens of this tokenizer
SINGLE_WORDS = ("Hello", "Danke", "да", "ναι", "谢谢", "مرحبا", "🙂", "ok", "42", "Ende.")
EMOJI = (
    ("🧵", "thread, or a long story told in pieces"),
    ("🫖", "teapot"),
    ("🪜", "ladder"),
    ("🐝", "bee"),
    ("👩🏽‍🔧", "a mechanic (four code points, one person)"),
    ("🏳️‍🌈", "rainbow flag"),
    ("🇬🇷", "Greece: two letters, one flag"),
    ("👨‍👩‍👧‍👦", "a family of four, joined by invisible characters"),
    ("☂️", "umbrella"),
    ("🥖", "baguette"),
    ("🧑‍🌾", "farmer"),
    ("❄️", "snowflake"),
)


def text_records(dice: Dice) -> list[dict[str, str]]:
    """Every kind of document in turn, shuffled."""
    en = read_language("en")
    others = [read_language(code) for code in LANGUAGES]
    essays = dice.shuffled(read_items("essays"))
    programs = dice.shuffled(read_items("code"))
    texts = list(SINGLE_WORDS)
    invented: tuple[tuple[int, Callable[[Dice, Language], str]], ...] = (
        (24, place),
        (6, guide),
        (16, letter),
        (15, diary),
        (22, story),
        (4, serial),
        (9, minutes),
        (12, review),
        (11, bestiary),
        (9, dialogue),
        (14, poem),
    )
    for count, write in invented:
        texts += [write(dice, en) for _ in range(count)]
    for language in others:
        texts += [place(dice, language) for _ in range(5)]
        texts += [letter(dice, language) for _ in range(2)]
        texts += [guide(dice, language), questions(dice, language)]
    texts += [f"{title}\n\n{body}" if dice.chance(0.6) else body for title, body in essays[:28]]
    texts += [notebook(dice, essays[28 + 4 * i : 32 + 4 * i]) for i in range(4)]
    texts.append(notebook(dice, essays))  # the longest document: more than one pack of 4,096 tokens
    texts += [recipe(dice, title, body) for title, body in read_items("recipes")]
    texts += [program for _, program in programs]
    texts += [module(dice, programs) for _ in range(4)]
    texts += [tables(dice) for _ in range(22)]
    texts += [computed.ledger(dice, dice.length(12, 0.8)) for _ in range(4)]
    texts += [computed.server_log(dice, dice.length(14, 0.9)) for _ in range(7)]
    texts += [computed.timetable(dice, dice.between(4, 9)) for _ in range(4)]
    texts += [computed.todo(dice, dice.length(6, 0.5)) for _ in range(6)]
    texts += [computed.changelog(dice, dice.length(3, 0.8)) for _ in range(5)]
    texts += [phrasebook(dice, en, dice.some(others, dice.between(2, 6))) for _ in range(6)]
    texts.append("Signs and what they are called\n\n" + "\n".join(f"{sign}  {name}" for sign, name in EMOJI))
    texts.append("A line separator\u2028is one character, not the end of a line;\u00a0nor is a no-break space.")
    texts = with_windows_lines(dice, texts, 6)
    return [{"text": text} for text in dice.shuffled(texts)]


def with_windows_lines(dice: Dice, texts: list[str], n: int) -> list[str]:
    """The same texts, n of those with several lines as a Windows editor would have saved them."""
    eligible = [i for i, text in enumerate(texts) if 3 <= text.count("\n") <= 30 and "```" not in text]
    chosen = set(dice.some(eligible, n))
    return [text.replace("\n", "\r\n") if i in chosen else text for i, text in enumerate(texts)]


def place(dice: Dice, language: Language) -> str:
    scene = Scene(dice, language)
    size = dice.length(MEDIAN, 0.7)
    if language.code != "en" or size < 1100:
        return scene.prose("place", size)
    sections = zip(language.lines("headings"), scene.telling("place", size), strict=True)
    body = "\n\n".join(f"## {heading}\n\n{' '.join(said)}" for heading, said in sections if said)
    return f"# {scene.name('place')}\n\n{body}"


def guide(dice: Dice, language: Language) -> str:
    """Several places one after another: the long documents in each language."""
    names = dice.some(language.lines("places"), min(len(language.lines("places")), dice.length(4, 0.5)))
    entries = []
    for name in names:
        scene = Scene(dice, language)
        scene.known["place"] = name
        entries.append(f"{name}\n\n{scene.prose('place', dice.length(MEDIAN, 0.5))}")
    return "\n\n\n".join(entries)


def letter(dice: Dice, language: Language) -> str:
    scene = Scene(dice, language)
    told = scene.telling("letter", dice.length(MEDIAN, 0.5))
    return "\n\n".join(language.space.join(said) for said in told if said)


def diary(dice: Dice, language: Language) -> str:
    day, entries = computed.a_date(dice), []
    for _ in range(dice.length(2.2, 1.0)):
        told = [line for said in Scene(dice, language).telling("diary", dice.length(220, 0.5)) for line in said]
        entries.append(f"{day.day} {day:%B}. " + " ".join(told))
        day += timedelta(days=dice.between(1, 5))
    return "\n\n".join(entries)


def story(dice: Dice, language: Language) -> str:
    return Scene(dice, language).prose("story", dice.length(950, 0.6))


def serial(dice: Dice, language: Language) -> str:
    """A book of tales, each with its own people."""
    tales = [Scene(dice, language).prose("story", dice.length(1300, 0.3)) for _ in range(dice.between(2, 6))]
    return "\n\n".join(f"{computed.roman(i + 1)}.\n\n{tale}" for i, tale in enumerate(tales))


def minutes(dice: Dice, language: Language) -> str:
    scene = Scene(dice, language)
    day = computed.a_date(dice)
    present = ", ".join(dice.some(language.lines("people"), dice.between(3, 6)))
    lines = language.lines("minutes")
    items = [scene.expand(line) for line in dice.some(lines, dice.between(2, len(lines)))]
    body = "\n".join(f"{i + 1}. {item}" for i, item in enumerate(items))
    closed = f"{dice.between(7, 10)}:{dice.between(10, 59)}"
    return f"Minutes, {day.day} {day:%B %Y}\nPresent: {present}\n\n{body}\n\nClosed at {closed}."


def review(dice: Dice, language: Language) -> str:
    return Scene(dice, language).prose("review", dice.length(420, 0.6))


def bestiary(dice: Dice, language: Language) -> str:
    count = dice.length(1.3, 0.7)
    return "\n\n".join(Scene(dice, language).prose("bestiary", dice.length(500, 0.4)) for _ in range(count))


def dialogue(dice: Dice, language: Language) -> str:
    return Scene(dice, language).verse("dialogue", dice.length(600, 0.5))


def poem(dice: Dice, language: Language) -> str:
    stanzas = []
    for _ in range(dice.length(1.6, 0.5)):
        scene = Scene(dice, language)
        lines = [scene.expand(line) for couplet in language.beats("poem") for line in couplet]
        keep = dice.between(0, 1) * 2
        stanzas.append("\n".join(lines[keep : keep + dice.pick((4, 6, 8))]))
    return "\n\n".join(stanzas)


def questions(dice: Dice, language: Language) -> str:
    return "\n\n".join(f"{q}\n{a}" for q, a in dice.shuffled(language.questions()))


def notebook(dice: Dice, essays: list[tuple[str, str]]) -> str:
    """Explanations under headings."""
    style = dice.pick(("## {}", "{}\n----", "*{}*"))
    return "\n\n".join(f"{style.format(title)}\n\n{body}" for title, body in essays)


def recipe(dice: Dice, title: str, body: str, serves: int | None = None) -> str:
    """A recipe with its quantities scaled to the number of people."""
    base, _, rest = body.partition("\n")
    serves = serves or int(base)

    def scaled(match: re.Match[str]) -> str:
        amount = int(match[1]) * serves / int(base)
        return f"{amount:.0f}" if amount >= 10 else f"{amount:g}"[:4].rstrip(".")

    lines = re.sub(r"\{(\d+)\}", scaled, rest).splitlines()
    amounts = [line for line, raw in zip(lines, rest.splitlines(), strict=True) if "{" in raw]
    steps = lines[len(amounts) :]
    bullet = dice.pick(("- ", "* ", "• "))
    return (
        f"{title} (serves {serves})\n\n"
        + "\n".join(bullet + line for line in amounts)
        + "\n\n"
        + "\n".join(f"{i + 1}. {step}" for i, step in enumerate(steps))
    )


def module(dice: Dice, programs: list[tuple[str, str]]) -> str:
    """A Python file of several parts, indentation and all."""
    parts = [body for title, body in programs if title.startswith("python") and "import sys" not in body]
    chosen = dice.some(parts, dice.between(2, 4))
    docstring = f'"""Small tools for the {dice.pick(computed.WORDS)} project."""'
    return "\n\n\n".join([docstring, *chosen, computed.a_table(dice, 0).python()]) + "\n"


def tables(dice: Dice) -> str:
    table = computed.a_table(dice, dice.length(4, 0.7))
    forms = (
        table.csv,
        table.json,
        table.json_lines,
        table.yaml,
        table.markdown,
        table.sql,
        table.python,
        table.typescript,
        table.c,
    )
    text = dice.pick(forms)()
    if dice.chance(0.2):
        text = f"The {table.noun} register, {json.dumps(computed.a_date(dice).isoformat())}:\n\n{text}"
    return text


def phrasebook(dice: Dice, english: Language, others: list[Language]) -> str:
    """The same words in several languages, as a table."""
    lines = ["| English | " + " | ".join(o.name for o in others) + " |", "| --- " * (len(others) + 1) + "|"]
    for i in sorted(dice.some(range(len(english.words())), dice.between(6, 20))):
        lines.append("| " + " | ".join(language.words()[i] for language in (english, *others)) + " |")
    return "\n".join(lines)
