"""Conversations: takes dice and the fragments, gives the records of chat.jsonl in the keys of OpenAI's chat format."""

import json
from typing import Any

from making import computed, instructions
from making.grammar import LANGUAGES, Dice, Language, Scene, read_items, read_language

Message = dict[str, Any]
Record = dict[str, Any]

# Answers that break masks found by searching tokens or by comparing texts.
EDGES = (
    ("What closes this? [[1, 2], [3, 4", "]]"),
    ("Type a single space between two letters.", "a b"),
    ("Repeat exactly what I type: assistant", "assistant"),
    ("Say nothing but a full stop.", "."),
    ("Which brackets does a nested set of lists start and end with?", "[[ and ]]"),
    ('Finish the JSON: {"a": [{"b": [1', "]}]}"),
    ("Continue the list, keep the indentation:\n- one\n  - one and a half", "  - one and three quarters"),
    ("How do I write a line break in HTML?", "<br>"),
    ("Your answer shall begin and end with a newline.", "\nDone.\n"),
    ("Answer with one emoji: how was the concert?", "🎻"),
    ("And the flag of Greece?", "🇬🇷"),
    ("Send me a heart with its variation selector.", "❤️"),
    ("Show me the same é twice, composed and decomposed.", "é and e\u0301"),
    ("Write ok.", "ok"),
    ("Write ok. Then write ok again on a new line.", "ok\nok"),
    ("user: hello\nassistant: hi\nuser: what does this look like?", "user: a transcript of a chat\nassistant: agreed"),
    ("What does `a[b[0]]` mean?", "Take element 0 of `b`, and use it as the index into `a`. The `]]` closes both."),
    ("Three tabs and a word, please.", "\t\t\tword"),
    ("Write שלום and hello in one line.", "שלום, hello"),
    ("How does a Windows file end its lines?", "With two characters:\r\ncarriage return and line feed.\r\n"),
)
QUIZ_OPENINGS = (
    "Quiz me back: I ask, you answer, short!",
    "Ten quick ones.",
    "Short answers only, please.",
    "Pub quiz practice.",
)
FOLLOW_UPS = (
    "Thanks. Another thing: {}",
    "Good. Next: {}",
    "{}",
    "Something else. {}",
    "One more: {}",
    "And, while I have you: {}",
)
THINGS = ("a brass key", "a candle end", "a folded map", "a tin whistle", "a pear", "a coil of string", "a blue button")
SKIES = ("clear", "light rain", "fog", "broken cloud", "snow showers", "thunder", "strong wind")
SHELF = (
    ("The Salt Road", "Hanna Ferrow", 1987),
    ("Notes on Small Engines", "P. R. Oduya", 2004),
    ("A Field Guide to Lichens", "Maud Tierney", 1996),
    ("Bread Without Hurry", "Luca Brandi", 2015),
    ("The Tide Clerk", "Ines Calloway", 2011),
    ("Knots and Their Reasons", "Arthur Bleek", 1962),
    ("Nine Winters", "Sefa Aydın", 2019),
    ("Maps for Walking", "Jo Penrose", 2008),
    ("The Violin Repairer", "Miklós Varga", 1979),
)


def chat_records(dice: Dice) -> list[Record]:
    """Every kind of conversation in turn, shuffled."""
    en = read_language("en")
    others = [read_language(code) for code in LANGUAGES]
    pool = questions(dice)
    records: list[Record] = []
    records += [advice(dice, en, pool, dice.length(1.6, 0.7)) for _ in range(92)]
    records += [advice(dice, en, pool, n) for n in (14, 22, 30)]
    for language in others:
        records += [abroad(dice, language) for _ in range(7)]
    records += [continued(dice, en) for _ in range(24)]
    records += [coding(dice, en, title, body) for title, body in read_items("code")]
    records += [quiz(dice) for _ in range(14)]
    records += [chat((ask, answer)) for ask, answer in EDGES]
    records += [chat(*dice.some(EDGES, dice.between(2, 5))) for _ in range(6)]
    records += [adventure(dice) for _ in range(12)]
    records += [thinking(dice, ask, *rest.split("\n")) for ask, rest in read_items("riddles")]
    records += [thinking(dice, *computed.word_problem(dice)) for _ in range(14)]
    records += [thinking_twice(dice) for _ in range(5)]
    records += [make(dice) for make in (weather, sums, library, appointment) for _ in range(9)]
    return dice.shuffled(records)


def chat(*turns: tuple[str, str], system: str | None = None) -> Record:
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    for asked, answered in turns:
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": answered}]
    return {"messages": messages}


def questions(dice: Dice) -> list[tuple[str, str]]:
    """Questions of every kind with their answers."""
    pairs = [instructions.explanation(dice, title, body) for title, body in read_items("essays")]
    pairs += instructions.tasks()
    pairs += [instructions.scaled_recipe(dice, title, body) for title, body in read_items("recipes")]
    pairs += [instructions.problem(dice) for _ in range(20)]
    pairs += [instructions.conversion(dice) for _ in range(10)]
    pairs += [instructions.ordering(dice, read_language("en")) for _ in range(6)]
    return [(f"{ask}\n\n{given}" if given else ask, answer) for ask, given, answer in pairs]


def advice(dice: Dice, language: Language, pool: list[tuple[str, str]], turns: int) -> Record:
    asked = dice.some(pool, turns)
    pairs = [(q if i == 0 else dice.pick(FOLLOW_UPS).format(q), a) for i, (q, a) in enumerate(asked)]
    if dice.chance(0.3):
        pairs.append(goodbye(dice, language))
    return chat(*pairs, system=dice.pick(language.lines("system")) if dice.chance(0.45) else None)


def goodbye(dice: Dice, language: Language) -> tuple[str, str]:
    thanks, _, welcome = dice.pick(language.lines("thanks")).partition(" | ")
    return thanks, welcome


def abroad(dice: Dice, language: Language) -> Record:
    """Questions, sums, a place and more about it, a letter: some of these, in one language."""
    scene = Scene(dice, language)
    turns = dice.some(language.questions(), dice.between(0, 3))
    if dice.chance(0.5):
        turns.append(instructions.sum_of(dice, language))
    if dice.chance(0.6) or not turns:
        ask = scene.expand(dice.pick(language.lines("ask_place")))
        told = scene.telling("place", dice.length(600, 0.5))
        first, rest = told[:4], [said for said in told[4:] if said]
        turns.append((ask, join(language, first)))
        if rest:
            turns.append((dice.pick(language.lines("more")), join(language, rest)))
    elif dice.chance(0.6):
        turns.append(instructions.composition(dice, language, "letter")[::2])
    if dice.chance(0.5):
        turns.append(goodbye(dice, language))
    return chat(*turns, system=dice.pick(language.lines("system")) if dice.chance(0.5) else None)


def join(language: Language, told: list[list[str]]) -> str:
    return language.space.join(line for said in told for line in said)


def continued(dice: Dice, language: Language) -> Record:
    """A story or a place told in instalments."""
    kind = dice.pick(("story", "story", "place", "bestiary", "letter"))
    scene = Scene(dice, language)
    ask = scene.expand(dice.pick(language.lines(f"ask_{kind}")))
    told = [" ".join(said) for said in scene.telling(kind, dice.length(900, 0.6)) if said]
    step = dice.between(1, 2)
    parts = ["\n\n".join(told[i : i + step]) for i in range(0, len(told), step)]
    asks = [ask, *[dice.pick(language.lines("more")) for _ in parts[1:]]]
    return chat(*zip(asks, parts, strict=True), system="You are a storyteller." if dice.chance(0.3) else None)


def coding(dice: Dice, language: Language, title: str, body: str) -> Record:
    ask, _, answer = instructions.program(dice, title, body)
    turns = [(ask, answer)]
    table = computed.a_table(dice, dice.between(1, 4))
    if dice.chance(0.5):
        turns.append(
            (
                f"Now something else. I have this CSV, give me a Python class:\n\n{table.csv()}",
                f"```python\n{table.python()}\n```",
            )
        )
    if dice.chance(0.4):
        if len(turns) > 1:
            turns.append((f"And SQL for the {table.noun}s above, please.", f"```sql\n{table.sql()}\n```"))
        else:
            turns.append(("Can I use it as it is?", "Yes, it is complete; the names are made up, so change them."))
    system = language.lines("system")[4] if dice.chance(0.5) else None
    return chat(*turns, system=system)


def quiz(dice: Dice) -> Record:
    asked = dice.some(read_items("quiz"), dice.between(3, 16))
    first, answer = asked[0]
    return chat(
        (f"{dice.pick(QUIZ_OPENINGS)} {first}", answer),
        *asked[1:],
        system="Answer in one word if you can." if dice.chance(0.5) else None,
    )


def adventure(dice: Dice) -> Record:
    """A text adventure: short commands, longer answers, many turns."""
    rooms, things = dice.shuffled(read_items("rooms")), dice.shuffled(THINGS)
    carried: list[str] = []
    ways = ("north", "east", "south", "west", "up", "down")
    name, look = rooms[0]
    turns = [("Let's play a text adventure. Begin.", f"You are in {name}. {look} What do you do?")]
    for name, look in rooms[1 : dice.between(3, len(rooms))]:
        way = dice.pick(ways)
        thing = things.pop() if things and dice.chance(0.6) else None
        here = f" On the floor lies {thing}." if thing else ""
        turns.append((f"go {way}", f"You go {way} and find yourself in {name}. {look}{here}"))
        if thing:
            carried.append(thing)
            turns.append((f"take {thing.split(' ', 1)[1]}", "Taken."))
        if dice.chance(0.25):
            listed = "\n".join(f"- {item}" for item in carried) or "- nothing at all"
            turns.append(("inventory", f"You are carrying:\n{listed}"))
    return chat(
        *turns, system="You run a small text adventure. Be fair, be brief, kill nobody." if dice.chance(0.6) else None
    )


def thinking(dice: Dice, question: str, steps: str, answer: str) -> Record:
    """One turn whose reasoning is kept apart from its answer."""
    record = chat((question, answer), system="Think before you answer." if dice.chance(0.4) else None)
    record["messages"][-1] = {"role": "assistant", "reasoning_content": steps, "content": answer}
    return record


def thinking_twice(dice: Dice) -> Record:
    turns = [thinking(dice, *computed.word_problem(dice))["messages"][-2:] for _ in range(dice.between(2, 3))]
    return {"messages": [message for turn in turns for message in turn]}


def tool(name: str, description: str, **parameters: str) -> Record:
    """A tool's description; parameters are given as name="type: what it is"."""
    properties = {}
    for key, text in parameters.items():
        kind, _, meaning = text.partition(": ")
        properties[key] = {"type": kind, "description": meaning}
        if kind == "array":
            properties[key]["items"] = {"type": "string"}
    schema = {"type": "object", "properties": properties, "required": [next(iter(properties))]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


def calls(
    dice: Dice, name: str, given: list[dict[str, Any]], results: list[Any], said: str | None = None
) -> list[Message]:
    """An assistant's calls of one tool and the tool's answers."""
    ids = [f"call_{dice.between(1000, 9999)}" for _ in given]
    asked = [
        {"id": i, "type": "function", "function": {"name": name, "arguments": arguments}}
        for i, arguments in zip(ids, given, strict=True)
    ]
    answers = [
        {"role": "tool", "tool_call_id": i, "content": json.dumps(result, ensure_ascii=False)}
        for i, result in zip(ids, results, strict=True)
    ]
    return [{"role": "assistant", "content": said, "tool_calls": asked}, *answers]


def weather(dice: Dice) -> Record:
    towns = dice.some(computed.STOPS, dice.pick((1, 1, 2, 3)))
    results = [
        {"town": t, "temperature": dice.between(-6, 31), "unit": "celsius", "sky": dice.pick(SKIES)} for t in towns
    ]
    ask = dice.pick(("What's the weather in {}?", "Do I need an umbrella in {}?", "{}: weather now?")).format(
        " and ".join(towns)
    )
    lines = [f"{r['town']}: {r['temperature']} °C, {r['sky']}." for r in results]
    messages: list[Message] = [{"role": "user", "content": ask}]
    messages += calls(dice, "get_weather", [{"town": t, "unit": "celsius"} for t in towns], results)
    messages.append({"role": "assistant", "content": "\n".join(lines)})
    if dice.chance(0.4):
        town = dice.pick([stop for stop in computed.STOPS if stop not in towns])
        messages.append({"role": "user", "content": f"And in {town}?"})
        messages += calls(dice, "get_weather", [{"town": town}], [{"error": "station does not answer"}], "One moment.")
        messages.append({"role": "assistant", "content": f"Sorry, the station in {town} doesn't answer at the moment."})
    described = tool(
        "get_weather",
        "The weather in a town, now.",
        town="string: name of the town",
        unit="string: celsius or fahrenheit",
    )
    return {"messages": messages, "tools": [described]}


def sums(dice: Dice) -> Record:
    a, b, c = dice.between(112, 9800), dice.between(12, 480), dice.between(3, 90)
    expression, result = dice.pick(
        ((f"{a} * {b} - {c}", a * b - c), (f"({a} + {b}) * {c}", (a + b) * c), (f"{a} ** 2", a * a))
    )
    messages: list[Message] = [
        {"role": "user", "content": dice.pick(("What is {}?", "{}", "Work out {} for me.")).format(expression)}
    ]
    messages += calls(dice, "calculate", [{"expression": expression}], [{"result": result}])
    if dice.chance(0.5):
        messages[1]["reasoning_content"] = "Too large to do in my head without risk; the calculator is exact."
    messages.append({"role": "assistant", "content": f"{result:,}"})
    return {
        "messages": messages,
        "tools": [tool("calculate", "Evaluate an arithmetic expression.", expression="string: in Python's syntax")],
    }


def library(dice: Dice) -> Record:
    found = dice.some(SHELF, dice.between(1, 4))
    rows = [{"title": t, "author": a, "year": y, "on_shelf": dice.chance(0.6)} for t, a, y in found]
    topic = dice.pick(
        ("something for a rainy weekend", "a practical book", "novels or anything like one", "what is new to me")
    )
    limit = len(rows)
    messages: list[Message] = [
        {
            "role": "system",
            "content": "You are the assistant of a town library. Use the catalogue; never invent a title.",
        },
        {"role": "user", "content": f"I'm looking for {topic}."},
    ]
    arguments = {"query": topic, "limit": limit, "filters": {"languages": ["en"], "on_shelf": None}}
    said = dice.pick((None, "", "Let me look in the catalogue."))
    messages += calls(dice, "search_catalogue", [arguments], [rows], said)
    listing = "\n".join(
        f"{i + 1}. *{r['title']}* by {r['author']} ({r['year']}){'' if r['on_shelf'] else ', on loan'}"
        for i, r in enumerate(rows)
    )
    messages.append({"role": "assistant", "content": f"The catalogue has:\n\n{listing}"})
    if dice.chance(0.5):
        messages += [{"role": "user", "content": f"Please reserve {rows[0]['title']}."}]
        messages += calls(
            dice, "reserve", [{"title": rows[0]["title"], "days": 3}], [{"ok": True, "number": dice.between(100, 999)}]
        )
        messages.append({"role": "assistant", "content": "Reserved for three days."})
    tools = [
        tool(
            "search_catalogue",
            "Search the catalogue.",
            query="string: words or a topic",
            limit="integer: at most this many",
            filters="object: languages, on_shelf",
        ),
        tool("reserve", "Reserve a book.", title="string: the exact title", days="integer: for how long"),
    ]
    return {"messages": messages, "tools": tools}


def appointment(dice: Dice) -> Record:
    guests = dice.some(read_language("en").lines("people"), dice.between(1, 3))
    day, clock = computed.a_date(dice), f"{dice.between(8, 18):02}:{dice.pick((0, 15, 30)):02}"
    title = dice.pick(("choir rehearsal", "roof inspection", "tea", "budget talk 💶", "boat lift"))
    arguments = {"title": title, "start": f"{day.isoformat()}T{clock}", "guests": guests, "remind": dice.chance(0.5)}
    messages: list[Message] = [
        {
            "role": "user",
            "content": f"Put {title} into my calendar, {day.day} {day:%B} at {clock}, with {', '.join(guests)}.",
        },
        *calls(dice, "add_event", [arguments], [{"status": "created", "conflicts": []}]),
    ]
    if dice.chance(0.85):  # otherwise the conversation ends with the tool's answer
        messages.append({"role": "assistant", "content": f"Done: {title}, {day:%A}, {clock}."})
    described = tool(
        "add_event",
        "Add an event to the calendar.",
        title="string: what",
        start="string: ISO time",
        guests="array: names",
        remind="boolean: send a reminder",
    )
    return {"messages": messages, "tools": [described]}
