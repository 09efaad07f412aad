"""Instructions with their answers: takes dice and the fragments, gives the records of instructions.jsonl."""

import json
import re

from making import computed, documents
from making.grammar import LANGUAGES, Dice, Language, Scene, read_items, read_language

EXPLAIN = (
    "Explain in a short paragraph: {}",
    "{} – please explain it to a curious adult.",
    "Write a few plain sentences. Topic: {}",
    "Someone at dinner asks about this: {}. What do you say?",
)
TRANSLATE = ("Translate the word into {}.", "What is this in {}?", "Give the {} word.")
ENGLISH_KINDS = ("place", "letter", "story", "poem", "diary", "review", "bestiary", "dialogue", "minutes")

Pair = tuple[str, str, str]


def instruction_records(dice: Dice) -> list[dict[str, str]]:
    """Every kind of instruction in turn, shuffled."""
    en = read_language("en")
    others = [read_language(code) for code in LANGUAGES]
    pairs = tasks()
    pairs += [explanation(dice, title, body) for title, body in dice.some(read_items("essays"), 34)]
    pairs += [program(dice, title, body) for title, body in read_items("code")]
    pairs += [scaled_recipe(dice, title, body) for title, body in read_items("recipes")]
    for kind in ENGLISH_KINDS:
        pairs += [composition(dice, en, kind) for _ in range(6)]
    for language in others:
        pairs += [(question, "", answer) for question, answer in language.questions()]
        pairs += [composition(dice, language, "place") for _ in range(3)]
        pairs += [composition(dice, language, "letter") for _ in range(2)]
        pairs += [product(dice, language), three_places(dice, language)]
        pairs += [translation(dice, en, language) for _ in range(2)]
    pairs += [primer(dice) for _ in range(7)]
    pairs += [problem(dice) for _ in range(24)]
    pairs += [reading(dice, en) for _ in range(20)]
    pairs += [conversion(dice) for _ in range(22)]
    pairs += [ordering(dice, en) for _ in range(12)]
    answers = documents.with_windows_lines(dice, [answer for _, _, answer in pairs], 4)
    records = [
        {"instruction": instruction, "input": given, "output": answer}
        for (instruction, given, _), answer in zip(pairs, answers, strict=True)
    ]
    return dice.shuffled(records)


def tasks() -> list[Pair]:
    """The hand-written tasks: instruction, the input's line or lines, the answer."""
    out = []
    for instruction, rest in read_items("tasks"):
        given, _, answer = rest.partition("\n")
        if instruction == "Spot the bug.":  # its input has three lines
            first, second, third, answer = rest.split("\n", 3)
            given = "\n".join((first, second, third))
        out.append((instruction, given, answer))
    return out


def explanation(dice: Dice, title: str, body: str) -> Pair:
    return dice.pick(EXPLAIN).format(title), "", body


def program(dice: Dice, title: str, body: str) -> Pair:
    language, _, what = title.partition(": ")
    name = {
        "c": "C",
        "sql": "SQL",
        "html": "HTML",
        "yaml": "YAML",
        "json": "JSON",
        "toml": "TOML",
        "latex": "LaTeX",
        "javascript": "JavaScript",
    }
    shown = name.get(language, language.title())
    ask = dice.pick(("Write a small {} example: {}.", "{} please: {}", "Show me, in {}: {}")).format(shown, what)
    return ask, "", body if dice.chance(0.4) else f"```{language}\n{body}\n```"


def scaled_recipe(dice: Dice, title: str, body: str) -> Pair:
    people = dice.between(2, 12)
    ask = dice.pick(("Give me a recipe for {} people.", "Scale the recipe to {} servings."))
    return ask.format(people), title, documents.recipe(dice, title, body, people)


def composition(dice: Dice, language: Language, kind: str) -> Pair:
    """A request for a text, and the text; the names in the request are those in the text."""
    scene = Scene(dice, language)
    ask = scene.expand(dice.pick(language.lines(f"ask_{kind}")))
    if kind in ("diary", "minutes", "poem"):
        write = {"diary": documents.diary, "minutes": documents.minutes, "poem": documents.poem}[kind]
        return ask, "", write(dice, language)
    size = dice.length(700, 0.7)
    text = scene.verse(kind, size) if kind in ("letter", "dialogue") else scene.prose(kind, size)
    return ask, "", text


def product(dice: Dice, language: Language) -> Pair:
    question, answer = sum_of(dice, language)
    return question, "", answer


def sum_of(dice: Dice, language: Language) -> tuple[str, str]:
    a, b = dice.between(3, 19), dice.between(3, 19)
    question, answer = (line.format(a=a, b=b, c=a * b) for line in language.lines("sum"))
    return question, answer


def translation(dice: Dice, english: Language, language: Language) -> Pair:
    picked = dice.some(range(len(english.words())), dice.pick((1, 1, 3, 5)))
    given = ", ".join(english.words()[i] for i in picked)
    ask = (
        dice.pick(TRANSLATE).format(language.name)
        if len(picked) == 1
        else f"Translate these words into {language.name}."
    )
    return ask, given, ", ".join(language.words()[i] for i in picked)


def problem(dice: Dice) -> Pair:
    question, steps, answer = computed.word_problem(dice)
    if dice.chance(0.3):
        return "Solve the problem and give only the result.", question, answer
    return "Solve the problem step by step.", question, f"{steps}\n\nAnswer: {answer}"


def reading(dice: Dice, language: Language) -> Pair:
    """A question about a text, answered from what the text was made of."""
    questions = {
        r"[Aa]bout (\d+) people": "About how many people live there?",
        r"\b(1[89]\d\d)\b": "Which year after 1800 does it mention?",
        r"footpath of (\d) miles": "How many miles long is the footpath?",
        r"the (\w+) market": "On which day is the market?",
        r"theatre with (\d+) seats": "How many seats has the theatre?",
        r"The local dish is (.+?), and": "What do people there like to eat?",
    }
    while True:
        text = Scene(dice, language).prose("place", dice.length(900, 0.5))
        found = {ask: re.findall(pattern, text, re.IGNORECASE) for pattern, ask in questions.items()}
        answerable = [ask for ask, answers in found.items() if len(answers) == 1]
        if answerable:
            ask = dice.pick(answerable)
            return f"Read the text and answer the question. {ask}", text, found[ask][0]


def primer(dice: Dice) -> Pair:
    """Several subjects in one long answer."""
    essays = dice.some(read_items("essays"), dice.length(5, 0.5))
    ask = "Write a primer for new apprentices, a section for each of these subjects."
    return ask, "\n".join(title for title, _ in essays), documents.notebook(dice, essays)


def three_places(dice: Dice, language: Language) -> Pair:
    """The same request for several places, answered in order."""
    scenes = [Scene(dice, language) for _ in range(dice.between(2, 4))]
    names = dice.some(language.lines("places"), len(scenes))
    ask = dice.pick(language.lines("ask_place"))
    asks, texts = [], []
    for scene, name in zip(scenes, names, strict=True):
        scene.known["place"] = name
        asks.append(scene.expand(ask))
        texts.append(f"**{name}**\n\n{scene.prose('place', dice.length(700, 0.4))}")
    return asks[0], "\n".join(asks[1:]), "\n\n".join(texts)


def conversion(dice: Dice) -> Pair:
    table = computed.a_table(dice, dice.length(3, 0.6))
    forms = {
        "CSV": table.csv,
        "JSON": table.json,
        "YAML": table.yaml,
        "a Markdown table": table.markdown,
        "JSON Lines": table.json_lines,
    }
    if dice.chance(0.4):
        target, made = dice.pick(
            (
                ("a Python dataclass", table.python()),
                ("SQL", table.sql()),
                ("a TypeScript interface", table.typescript()),
                ("a C struct", table.c()),
            )
        )
        return f"From this sample, write {target} for a {table.noun}.", table.csv(), made
    source, target = dice.some(list(forms), 2)
    source_name = source.removeprefix("a ")
    return f"Convert this {source_name} to {target}.", forms[source](), forms[target]()


def ordering(dice: Dice, language: Language) -> Pair:
    kind = dice.below(3)
    if kind == 0:
        numbers = [dice.between(-50, 400) for _ in range(dice.between(4, 14))]
        return (
            "Sort the numbers from small to large.",
            ", ".join(map(str, numbers)),
            ", ".join(map(str, sorted(numbers))),
        )
    if kind == 1:
        words = dice.some(language.words(), dice.between(4, 10))
        return "Put the words in alphabetical order, as a JSON list.", " ".join(words), json.dumps(sorted(words))
    n = dice.between(4, 2026)
    return "Write the number in Roman numerals.", str(n), computed.roman(n)
