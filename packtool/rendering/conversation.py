"""Records that are conversations: what a template is given of them, and what they say themselves of their loss.

Takes one record in any of the forms people store, gives one form: messages, tools and variables. Everything a
template may read reaches it untouched; what cannot be a conversation is a Refusal. Knows no template, no tokens.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import orjson

from packtool.errors import Refusal
from packtool.rendering.rendered import string_field

Message = dict[str, Any]

_REASONING = ("reasoning_content", "thinking", "reasoning")
"""Names a message's reasoning goes by, in the order in which they count."""

TRAIN_KEYS = ("train", "training", "loss", "weight")
"""Keys of a message or a content part that say whether it carries loss."""

_SAY_REASONING, _SAY_TRAIN = frozenset(_REASONING), frozenset(TRAIN_KEYS)

_INSTEAD_OF_CONTENT = ("tool_calls", "function_call", *_REASONING)
"""What a message may say without a content."""

_SHAREGPT_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "observation": "tool",
    "function_call": "assistant",
}


_NOTHING: Mapping[Any, Any] = MappingProxyType({})


class Conversation(NamedTuple):  # quicker to make than a frozen dataclass, and made for each record
    """What a template is given, and what the record itself says of its loss."""

    messages: list[Message]
    """Each with at least a role; never empty."""
    tools: list[Any] | None = None
    extra: Mapping[str, Any] = _NOTHING
    """The record's own template variables."""
    choices: Mapping[int, bool] = _NOTHING
    """Message index to whether it trains, where the record says."""
    part_choices: Mapping[tuple[int, int], bool] = _NOTHING
    """(message, part) to whether that part of the content trains, where the record says."""


Reader = Callable[[Mapping[str, Any], bool], Conversation | Refusal]
"""(record by field names, columnar) -> conversation; ``columnar`` where a null inside a struct may mean "not there"."""


def openai(record: Mapping[str, Any], columnar: bool) -> Conversation | Refusal:
    """``messages``: a list of {role, content, ...}, or the same as a JSON string."""
    messages = _listed(record, "messages", columnar)
    return messages if isinstance(messages, Refusal) else _conversation(record, messages, columnar)


def sharegpt(record: Mapping[str, Any], columnar: bool) -> Conversation | Refusal:
    """``conversations``: a list of {from, value}, perhaps with a system prompt beside it."""
    turns = _listed(record, "conversations", columnar)
    if isinstance(turns, Refusal):
        return turns
    messages = _system(record)
    if isinstance(messages, Refusal):
        return messages
    for index, turn in enumerate(turns):
        message = _from_sharegpt(turn, index)
        if isinstance(message, Refusal):
            return message
        messages.append(message)
    return _conversation(record, messages, columnar)


def prompt_and_completion(record: Mapping[str, Any], columnar: bool) -> Conversation | Refusal:
    """Two lists of messages, of which those of the prompt do not train."""
    prompt = _listed(record, "prompt", columnar)
    if isinstance(prompt, Refusal):
        return prompt
    completion = _listed(record, "completion", columnar)
    if isinstance(completion, Refusal):
        return completion
    if not completion:
        return Refusal("empty", "field 'completion' has no messages")
    conversation = _conversation(record, [*prompt, *completion], columnar)
    if isinstance(conversation, Refusal):
        return conversation
    masked = dict.fromkeys(range(len(prompt)), False)
    return Conversation(
        conversation.messages,
        conversation.tools,
        conversation.extra,
        {**masked, **conversation.choices},
        conversation.part_choices,
    )


def alpaca(record: Mapping[str, Any], columnar: bool) -> Conversation | Refusal:
    """An instruction, perhaps with an input, and its answer; before them a system prompt and earlier pairs, if any."""
    instruction = string_field(record, "instruction")
    if isinstance(instruction, Refusal):
        return instruction
    output = string_field(record, "output")
    if isinstance(output, Refusal):
        return output
    if not output.strip():
        return Refusal("empty", f"field 'output' {'holds only white space' if output else 'is empty'}")
    extra = "" if record.get("input") is None else string_field(record, "input")
    if isinstance(extra, Refusal):
        return extra
    messages = _system(record)
    if isinstance(messages, Refusal):
        return messages
    history = record.get("history")
    if not isinstance(history, list | None):
        return Refusal("wrong_type", "field 'history' is not a list of pairs")
    for index, pair in enumerate(history or ()):
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(text, str) for text in pair)):
            return Refusal("wrong_type", f"'history'[{index}] is not a pair of strings")
        messages += [{"role": "user", "content": pair[0]}, {"role": "assistant", "content": pair[1]}]
    messages.append({"role": "user", "content": f"{instruction}\n\n{extra}" if extra else instruction})
    messages.append({"role": "assistant", "content": output})
    return _conversation(record, messages, columnar)


def _system(record: Mapping[str, Any]) -> list[Any] | Refusal:
    """The message of the system prompt that stands beside the others, if there is one."""
    if not record.get("system"):
        return []
    system = string_field(record, "system")
    return system if isinstance(system, Refusal) else [{"role": "system", "content": system}]


def with_parsed_arguments(messages: list[Message]) -> list[Message] | None:
    """The messages with tool arguments that are JSON strings parsed; None where there are none of those."""
    found = False
    changed: list[Message] = []
    for message in messages:
        calls = message.get("tool_calls")
        if isinstance(calls, list):
            new_calls = [_with_parsed(call) for call in calls]
            if any(new is not call for new, call in zip(new_calls, calls, strict=True)):
                found = True
                message = {**message, "tool_calls": new_calls}
        changed.append(message)
    return changed if found else None


def _with_parsed(call: Any) -> Any:
    function: Any = call.get("function", call) if isinstance(call, dict) else None
    arguments = function.get("arguments") if isinstance(function, dict) else None
    if not isinstance(arguments, str):
        return call
    try:
        parsed = json.loads(arguments)
    except (ValueError, RecursionError):
        return call
    changed = {**function, "arguments": parsed}
    return changed if function is call else {**call, "function": changed}


def _conversation(record: Mapping[str, Any], messages: list[Any], columnar: bool) -> Conversation | Refusal:
    if not messages:
        return Refusal("empty", "the conversation has no messages")
    choices: dict[int, bool] = {}
    part_choices: dict[tuple[int, int], bool] = {}
    are_plain = True
    for index, message in enumerate(messages):
        if _is_plain(message):
            continue
        are_plain = False
        refusal = _check_message(message, index)
        if refusal is not None:
            return refusal
        choice = _choice(message, f"message {index + 1}")
        if isinstance(choice, Refusal):
            return choice
        if choice is not None:
            choices[index] = choice
        content = message.get("content")
        for part_index, part in enumerate(content if isinstance(content, list) else []):
            choice = _choice(part, f"message {index + 1}, part {part_index + 1}")
            if isinstance(choice, Refusal):
                return choice
            if choice is not None:
                part_choices[index, part_index] = choice
    if not are_plain:
        messages = [_with_reasoning_names(message) for message in messages]
    tools = _tools(record, columnar)
    if isinstance(tools, Refusal):
        return tools
    extra = record.get("chat_template_kwargs")
    if columnar:
        extra = _without_nulls(extra)
    if extra is None:
        extra = {}
    if not isinstance(extra, dict):
        return Refusal("wrong_type", "field 'chat_template_kwargs' is not an object")
    return Conversation(messages, tools, extra, choices, part_choices)


def _is_plain(message: Any) -> bool:
    """Whether it is a role and a text and nothing else, as nearly all are: there is nothing to find in it then."""
    if type(message) is not dict or len(message) != 2:
        return False
    role = message.get("role")
    return type(role) is str and role != "" and type(message.get("content")) is str


def _with_reasoning_names(message: Message) -> Message:
    """The message with its reasoning under every name that templates read it by, as transformers gives it to them."""
    if _SAY_REASONING.isdisjoint(message):
        return message
    reasoning = next((message[key] for key in _REASONING if message.get(key) is not None), None)
    return message if reasoning is None else {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _check_message(message: Any, index: int) -> Refusal | None:
    where = f"message {index + 1}"
    if not isinstance(message, dict):
        return Refusal("wrong_type", f"{where} is not an object")
    role = message.get("role")
    if not isinstance(role, str) or not role:
        state = "has no role" if role is None else f"has the role {str(role)[:40]!r}"
        return Refusal("bad_role", f"{where} {state}")
    if "content" not in message and not any(message.get(key) for key in _INSTEAD_OF_CONTENT):
        return Refusal("missing_field", f"{where} has no content")
    content = message.get("content")
    if content is not None and not isinstance(content, str | list):
        return Refusal("wrong_type", f"{where}: the content is neither a string nor a list of parts")
    for part_index, part in enumerate(content if isinstance(content, list) else []):
        kind = part.get("type") if isinstance(part, dict) else type(part).__name__
        if kind != "text" or not isinstance(part.get("text"), str):
            return Refusal("unsupported_part", f"{where}, part {part_index + 1} is {str(kind)[:40]!r}, not a text")
    return None


def _choice(said: Mapping[str, Any], where: str) -> bool | Refusal | None:
    """Whether a message or part says that it trains; None where it says nothing."""
    if _SAY_TRAIN.isdisjoint(said):
        return None
    found: dict[str, bool] = {}
    for key in TRAIN_KEYS:
        value = said.get(key)
        if value is None:
            continue
        if not (value in (0, 1) if key == "weight" else isinstance(value, bool)) or isinstance(value, str):
            allowed = "0 or 1" if key == "weight" else "true or false"
            return Refusal("bad_mask", f"{where}: {key} is {str(value)[:40]!r}, not {allowed}")
        found[key] = bool(value)
    if len(set(found.values())) > 1:
        return Refusal("bad_mask", f"{where}: {' and '.join(found)} disagree on whether it trains")
    return next(iter(found.values()), None)


def _listed(record: Mapping[str, Any], column: str, columnar: bool) -> list[Any] | Refusal:
    value = record.get(column)
    if value is None:
        return Refusal("missing_field", f"field {column!r} is {'null' if column in record else 'not there'}")
    if isinstance(value, str):
        return _parsed_list(value, column)
    if not isinstance(value, list):
        return Refusal("wrong_type", f"field {column!r} is not a list of messages")
    return [_message_without_nulls(entry) for entry in value] if columnar else value


def _parsed_list(text: str, column: str) -> list[Any] | Refusal:
    try:
        value = orjson.loads(text)
    except ValueError:
        return Refusal("wrong_type", f"field {column!r} is a string that is not JSON")
    if not isinstance(value, list):
        return Refusal("wrong_type", f"field {column!r} is a JSON string, but not of a list")
    return value


def _tools(record: Mapping[str, Any], columnar: bool) -> list[Any] | Refusal | None:
    value = record.get("tools")
    if isinstance(value, str):
        if not value.strip():
            return None
        return _parsed_list(value, "tools")
    if value is None:
        return None
    if not isinstance(value, list):
        return Refusal("wrong_type", "field 'tools' is not a list")
    # A table may hold each tool as a JSON string, since their schemas differ.
    parsed = [_parsed_tool(tool) for tool in value]
    if any(not isinstance(tool, dict) for tool in parsed):
        return Refusal("wrong_type", "field 'tools' holds something that is not an object")
    return [_without_nulls(tool) for tool in parsed] if columnar else parsed


def _parsed_tool(tool: Any) -> Any:
    if not isinstance(tool, str):
        return tool
    try:
        return orjson.loads(tool)
    except ValueError:
        return None


def _message_without_nulls(message: Any) -> Any:
    if not isinstance(message, dict):
        return message
    # A null content is said on purpose: a turn of tool calls alone.
    return {key: _without_nulls(value) for key, value in message.items() if value is not None or key == "content"}


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [_without_nulls(entry) for entry in value]
    return value


def _from_sharegpt(turn: Any, index: int) -> Message | Refusal:
    where = f"message {index + 1}"
    if not isinstance(turn, dict):
        return Refusal("wrong_type", f"{where} is not an object")
    if "from" not in turn and "role" in turn:
        return turn  # OpenAI's keys under ShareGPT's name
    speaker = turn.get("from")
    if not isinstance(speaker, str) or speaker not in _SHAREGPT_ROLES:
        state = "does not say whom it is from" if speaker is None else f"is from {str(speaker)[:40]!r}"
        return Refusal("bad_role", f"{where} {state}; known are {', '.join(_SHAREGPT_ROLES)}")
    if "value" not in turn:
        return Refusal("missing_field", f"{where} has no value")
    value = turn["value"]
    role = _SHAREGPT_ROLES[speaker]
    for key, meant in (("content", value), ("role", role)):
        # Two datasets joined into one table leave such keys, as nulls; anything else would be a second answer.
        if turn.get(key) is not None and turn[key] != meant:
            return Refusal("wrong_type", f"{where} has a {key} of its own beside from and value")
    said: Message = {key: entry for key, entry in turn.items() if key not in ("from", "value", "content", "role")}
    if speaker != "function_call":
        return {"role": role, "content": value, **said}
    try:
        call = orjson.loads(value) if isinstance(value, str) else value
    except ValueError:
        call = None
    calls = call if isinstance(call, list) else [call]
    if not calls or not all(isinstance(each, dict) and isinstance(each.get("name"), str) for each in calls):
        return Refusal("wrong_type", f"{where}: a function_call is JSON with a name and arguments")
    return {
        "role": role,
        "content": "",
        "tool_calls": [{"type": "function", "function": each} for each in calls],
        **said,
    }
