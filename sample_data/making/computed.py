"""Text whose facts are computed: tables, ledgers, logs, code from a schema, sums. Takes dice, gives strings."""

import json
from dataclasses import dataclass
from datetime import date, timedelta

from making.grammar import Dice

GOODS = ("rope", "lamp oil", "oats", "nails", "honey", "paper", "candles", "seed potatoes", "cheese", "wool",
         "ink", "salt", "slates", "twine", "soap", "chalk", "apples", "canvas", "tea", "hinges")  # fmt: skip
STOPS = ("Marrowby", "Wickerford", "Three Elms", "Port Almery", "Ashwater", "Great Ousel", "Dunnock Hill",
         "Tolland Cross", "Nether Quill", "Saltmarsh End")  # fmt: skip
NOUNS = {
    "boat": ("name", "length_m", "berth", "sails", "launched", "seaworthy"),
    "book": ("title", "author", "pages", "language", "printed", "on_loan"),
    "hive": ("label", "queen_year", "frames", "honey_kg", "temper", "inspected"),
    "walk": ("title", "distance_km", "climb_m", "start", "season", "dogs_allowed"),
    "parcel": ("number", "sender", "weight_kg", "zone", "posted", "insured"),
    "violin": ("maker", "made_year", "strings", "value", "label", "playable"),
    "garden": ("street", "area_m2", "beds", "soil", "rented", "has_water"),
    "train": ("line", "coaches", "seats", "speed_kmh", "origin", "electric"),
    "lamp": ("room", "watts", "kelvin", "socket", "bought", "dimmable"),
    "recipe": ("title", "serves", "minutes", "oven_c", "source", "vegetarian"),
}
WORDS = ("heron", "larch", "ochre", "quill", "saffron", "thistle", "umber", "willow", "juniper", "pewter",
         "clover", "damson", "ember", "fennel", "gorse", "hazel")  # fmt: skip


def kind_of(field: str) -> str:
    """int, float, bool, date or str, told from the field's name."""
    if field in ("launched", "inspected", "posted", "rented", "bought"):
        return "date"
    if field in ("seaworthy", "on_loan", "dogs_allowed", "insured", "playable", "has_water", "electric",
                 "dimmable", "vegetarian"):  # fmt: skip
        return "bool"
    if field.endswith(("_m", "_kg", "_km")) and field != "climb_m":
        return "float"
    if field in ("pages", "berth", "sails", "printed", "queen_year", "frames", "climb_m", "number", "zone",
                 "made_year", "strings", "value", "area_m2", "beds", "coaches", "seats", "speed_kmh", "watts",
                 "kelvin", "serves", "minutes", "oven_c"):  # fmt: skip
        return "int"
    return "str"


RANGES = {
    "pages": (40, 620), "berth": (1, 48), "sails": (1, 5), "printed": (1880, 2019), "queen_year": (2019, 2026),
    "frames": (5, 22), "climb_m": (0, 900), "number": (1000, 9999), "zone": (1, 6), "made_year": (1750, 2015),
    "strings": (4, 5), "value": (200, 9000), "area_m2": (40, 400), "beds": (2, 14), "coaches": (2, 12),
    "seats": (60, 700), "speed_kmh": (40, 220), "watts": (3, 60), "kelvin": (2200, 6500), "serves": (1, 12),
    "minutes": (5, 180), "oven_c": (120, 250),
}  # fmt: skip


def value_of(dice: Dice, field: str) -> str | int | float | bool:
    kind = kind_of(field)
    if kind == "date":
        return a_date(dice).isoformat()
    if kind == "bool":
        return dice.chance(0.5)
    if kind == "float":
        return dice.between(3, 240) / 10
    if kind == "int":
        return dice.between(*RANGES[field])
    return dice.pick(WORDS).title() if dice.chance(0.5) else f"{dice.pick(WORDS)} {dice.pick(WORDS)}".capitalize()


def a_date(dice: Dice) -> date:
    return date(2024, 1, 1) + timedelta(days=dice.below(1000))


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of one noun: enough to print it as CSV, JSON, YAML, Markdown, SQL or code."""

    noun: str
    fields: tuple[str, ...]
    rows: tuple[tuple[str | int | float | bool, ...], ...]

    def records(self) -> list[dict[str, str | int | float | bool]]:
        return [dict(zip(self.fields, row, strict=True)) for row in self.rows]

    def csv(self) -> str:
        return "\n".join(",".join(map(_plain, row)) for row in (self.fields, *self.rows))

    def json(self) -> str:
        return json.dumps(self.records(), indent=2, ensure_ascii=False)

    def json_lines(self) -> str:
        return "\n".join(json.dumps(record, ensure_ascii=False) for record in self.records())

    def yaml(self) -> str:
        lines = [f"{self.noun}s:"]
        for record in self.records():
            marks = ["  - ", *["    "] * (len(record) - 1)]
            lines += [f"{mark}{key}: {_plain(value)}" for mark, (key, value) in zip(marks, record.items(), strict=True)]
        return "\n".join(lines)

    def markdown(self) -> str:
        numeric = [kind_of(field) in ("int", "float") for field in self.fields]
        rule = ["---:" if right else "---" for right in numeric]
        rows = [self.fields, rule, *self.rows]
        return "\n".join("| " + " | ".join(map(_plain, row)) + " |" for row in rows)

    def sql(self) -> str:
        types = {"int": "integer", "float": "numeric(6, 1)", "bool": "boolean", "date": "date", "str": "text"}
        columns = ",\n".join(f"    {field} {types[kind_of(field)]} NOT NULL" for field in self.fields)
        lines = [f"CREATE TABLE {self.noun} (", "    id serial PRIMARY KEY,", columns, ");"]
        for row in self.rows:
            values = ", ".join(f"'{v}'" if isinstance(v, str) else _plain(v) for v in row)
            lines.append(f"INSERT INTO {self.noun} ({', '.join(self.fields)})\nVALUES ({values});")
        return "\n".join(lines)

    def python(self) -> str:
        name = self.noun.title()
        number = next((f for f in self.fields if kind_of(f) in ("int", "float")), None)
        lines = ["from dataclasses import dataclass", *(["from datetime import date"] if self._dated() else [])]
        lines += [
            "",
            "",
            "@dataclass(frozen=True)",
            f"class {name}:",
            f'    """One {self.noun} of the register."""',
            "",
        ]
        lines += [f"    {field}: {kind_of(field)}" for field in self.fields]
        if number:
            lines += [
                "", "", f"def largest({self.noun}s: list[{name}], n: int = 3) -> list[{name}]:",
                f'    """The n {self.noun}s with the highest {number.replace("_", " ")}."""',
                f"    return sorted({self.noun}s, key=lambda {self.noun}: -{self.noun}.{number})[:n]",
            ]  # fmt: skip
        return "\n".join(lines)

    def typescript(self) -> str:
        types = {"int": "number", "float": "number", "bool": "boolean", "date": "string", "str": "string"}
        body = "\n".join(f"  readonly {field}: {types[kind_of(field)]};" for field in self.fields)
        flag = next((f for f in self.fields if kind_of(f) == "bool"), None)
        text = f"export interface {self.noun.title()} {{\n{body}\n}}"
        if flag:
            text += (
                f"\n\nexport const {flag}Only = (all: {self.noun.title()}[]) =>\n"
                f"  all.filter(({{ {flag} }}) => {flag});"
            )
        return text

    def c(self) -> str:
        types = {
            "int": "int %s;",
            "float": "double %s;",
            "bool": "bool %s;",
            "date": "char %s[11];",
            "str": "char %s[64];",
        }
        body = "\n".join("\t" + types[kind_of(field)] % field for field in self.fields)
        return f"#include <stdbool.h>\n\nstruct {self.noun} {{\n{body}\n}};"

    def _dated(self) -> bool:
        return any(kind_of(field) == "date" for field in self.fields)


def _plain(value: str | int | float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def a_table(dice: Dice, rows: int) -> Table:
    noun = dice.pick(list(NOUNS))
    fields = NOUNS[noun]
    keep = sorted(dice.some(range(1, len(fields)), dice.between(2, len(fields) - 1)))
    chosen = (fields[0], *[fields[i] for i in keep])
    return Table(noun, chosen, tuple(tuple(value_of(dice, f) for f in chosen) for _ in range(rows)))


def ledger(dice: Dice, rows: int) -> str:
    """Purchases with a running total that is right."""
    day, total = a_date(dice), 0
    lines = [f"{'date':<12}{'goods':<16}{'price':>8}{'total':>9}", "-" * 45]
    for _ in range(rows):
        price = dice.between(40, 3900)
        total += price
        lines.append(f"{day.isoformat():<12}{dice.pick(GOODS):<16}{price / 100:>8.2f}{total / 100:>9.2f}")
        day += timedelta(days=dice.between(1, 9))
    return "\n".join(lines)


def timetable(dice: Dice, stops: int) -> str:
    names = dice.some(STOPS, stops)
    gaps = [0, *[dice.between(4, 19) for _ in names[1:]]]
    starts = sorted(dice.some(range(330, 1200, 25), 4))
    lines = [f"{'':<16}" + "".join(f"{'no. ' + str(n + 1):>8}" for n in range(4))]
    minutes = list(starts)
    for name, gap in zip(names, gaps, strict=True):
        minutes = [m + gap for m in minutes]
        lines.append(f"{name:<16}" + "".join(f"{m // 60:>5}:{m % 60:02}" for m in minutes))
    return "\n".join([*lines, "", "Sundays as no. 1 and no. 3 only. 🚌"])


def server_log(dice: Dice, rows: int) -> str:
    """Requests with times that run forward."""
    day, ms = a_date(dice).isoformat(), dice.between(0, 40_000_000)
    paths = ("/tides", "/tides/port-almery", "/login", "/static/chart.svg", "/api/v2/stations?near=51.2,-3.1", "/ready")
    lines = []
    for _ in range(rows):
        ms += dice.between(3, 90_000)
        clock = f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}.{ms % 1000:03}"
        status = dice.pick((200, 200, 200, 200, 304, 404, 503))
        level = "ERROR" if status == 503 else "WARN " if status == 404 else "INFO "
        lines.append(f"{day}T{clock}Z {level} GET {dice.pick(paths)} {status} {dice.between(1, 480)}ms")
        if status == 503:
            lines.append('    cause: TimeoutError("upstream did not answer")\n    retry: in 2s')
    return "\n".join(lines)


def todo(dice: Dice, rows: int) -> str:
    verbs = ("Order", "Weigh", "Return", "Label", "Find out who took", "Dry", "Count", "Write to Leila about", "Sell")
    return "\n".join(
        f"- [{'x' if dice.chance(0.4) else ' '}] {dice.pick(verbs)} the {dice.pick(GOODS)}"
        + (f" (by {a_date(dice):%d.%m.})" if dice.chance(0.3) else "")
        for _ in range(rows)
    )


def changelog(dice: Dice, releases: int) -> str:
    parts = (
        "the importer",
        "search",
        "the tide chart",
        "printing",
        "dark mode",
        "the settings page",
        "sync",
        "the map",
    )
    done = {
        "Added": ("keyboard shortcuts for {}", "{} can now be switched off", "an export from {}"),
        "Fixed": ("{} no longer forgets the last entry", "a crash in {} when the list is empty",
                  "wrong dates in {} west of Greenwich"),
        "Changed": ("{} starts twice as fast", "{} asks before it deletes anything", "clearer wording in {}"),
    }  # fmt: skip
    day, minor, lines = a_date(dice), dice.between(releases, 40), ["# Changelog", ""]
    for _ in range(releases):
        lines += [f"## 2.{minor}.0 ({day.isoformat()})", ""]
        for heading in dice.some(list(done), dice.between(1, 3)):
            lines += [f"### {heading}", ""]
            chosen = dice.some(done[heading], dice.between(1, 3))
            lines += [f"- {line.format(dice.pick(parts))}" for line in chosen] + [""]
        minor -= 1
        day -= timedelta(days=dice.between(9, 70))
    return "\n".join(lines).rstrip()


def word_problem(dice: Dice) -> tuple[str, str, str]:
    """A question, the steps to its answer, and the answer."""
    kind = dice.below(6)
    a, b, c = dice.between(3, 19), dice.between(4, 25), dice.between(2, 9)
    goods = dice.pick(GOODS)
    if kind == 0:
        question = f"A boat carries {a} crates with {b} jars in each. {c} jars break. How many are left?"
        return question, f"There are {a} × {b} = {a * b} jars. {a * b} − {c} = {a * b - c}.", f"{a * b - c} jars"
    if kind == 1:
        total = a * c + b
        question = f"{c} sacks of {goods} and a box of {b} kg weigh {total} kg together. What does one sack weigh?"
        return question, f"Without the box: {total} − {b} = {a * c} kg. {a * c} ÷ {c} = {a} kg.", f"{a} kg"
    if kind == 2:
        start, length = dice.between(360, 900), dice.between(35, 320)
        end = start + length
        leaves, arrives = f"{start // 60}:{start % 60:02}", f"{end // 60}:{end % 60:02}"
        question = f"A train leaves at {leaves} and arrives at {arrives}. How long is the journey?"
        return (
            question,
            f"In minutes after midnight: {end} − {start} = {length}. That is {length // 60} h {length % 60} min.",
            f"{length // 60} h {length % 60} min",
        )
    if kind == 3:
        price, percent = 20 * dice.between(2, 30), 5 * dice.between(1, 9)
        off = price * percent // 100
        question = f"A lamp costs {price} crowns. In the sale it is {percent} % cheaper. What does it cost now?"
        return question, f"{percent} % of {price} is {off}. {price} − {off} = {price - off}.", f"{price - off} crowns"
    if kind == 4:
        shared = 3 * (a + b)
        question = f"Three sisters gave {c} apples to the horse and shared {shared}. How many were there at first?"
        return (
            question,
            f"They shared {shared}, and {c} were given away before: {shared} + {c} = {shared + c}.",
            f"{shared + c} apples",
        )
    day = a_date(dice)
    later = day + timedelta(days=b)
    question = f"Today is {day:%A}, {day.day} {day:%B %Y}. What day is it in {b} days?"
    steps = f"{b} days are {b // 7} weeks and {b % 7} days; {b % 7} days after a {day:%A} comes a {later:%A}."
    return question, steps, f"{later:%A}, {later.day} {later:%B %Y}"


def roman(n: int) -> str:
    out = ""
    for value, mark in zip(
        (1000, 900, 500, 400, 100, 90, 50, 40, 10, 9, 5, 4, 1),
        ("M", "CM", "D", "CD", "C", "XC", "L", "XL", "X", "IX", "V", "IV", "I"),
        strict=True,
    ):
        out += mark * (n // value)
        n %= value
    return out
