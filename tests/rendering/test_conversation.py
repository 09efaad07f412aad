"""Records to conversations: every form, what the record says of its loss, and a reason for what is none."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packtool.errors import Refusal
from packtool.rendering import conversation
from packtool.rendering.conversation import Conversation, Reader, with_parsed_arguments
from tests.chats import assistant, call, system, tool, user

CHAT = [user("q"), assistant("a")]


def read(reader: Reader, record: Mapping[str, Any], *, columnar: bool = False) -> Conversation:
    found = reader(record, columnar)
    assert isinstance(found, Conversation), found
    return found


def refused(reader: Reader, record: Mapping[str, Any], *, columnar: bool = False) -> str:
    found = reader(record, columnar)
    assert isinstance(found, Refusal), found
    assert "\n" not in found.detail
    return found.reason


def openai(record: Mapping[str, Any], *, columnar: bool = False) -> Conversation:
    return read(conversation.openai, record, columnar=columnar)


def messages_of(messages: Any) -> str:
    return refused(conversation.openai, {"messages": messages})


# --- forms ---------------------------------------------------------------------------------------------------


def test_messages_are_taken_as_they_are() -> None:
    messages = [
        {"role": "user", "content": "q", "name": "Ann", "extra": {"a": [None, 1.5]}},
        {"role": "assistant", "content": None, "tool_calls": [call(city="Paris")], "refusal": None},
        tool("sunny"),
    ]
    assert openai({"messages": messages}).messages == messages


@given(st.lists(st.sampled_from([user("q"), assistant("a"), system("s"), tool("r")]), min_size=1, max_size=5))
def test_a_json_string_of_messages_is_the_messages(messages: list[dict[str, Any]]) -> None:
    assert openai({"messages": json.dumps(messages)}) == openai({"messages": messages})


def test_sharegpt_has_its_own_words_for_roles() -> None:
    turns = [
        {"from": "system", "value": "s"},
        {"from": "human", "value": "q"},
        {"from": "gpt", "value": "a"},
        {"from": "user", "value": "q"},
        {"from": "assistant", "value": "a"},
        {"from": "tool", "value": "r"},
        {"from": "observation", "value": "r"},
    ]
    found = read(conversation.sharegpt, {"conversations": turns})
    assert [message["role"] for message in found.messages] == [
        "system",
        "user",
        "assistant",
        "user",
        "assistant",
        "tool",
        "tool",
    ]
    assert [message["content"] for message in found.messages] == ["s", "q", "a", "q", "a", "r", "r"]
    assert read(conversation.sharegpt, {"conversations": json.dumps(turns)}) == found


def test_sharegpt_may_use_the_keys_of_openai() -> None:
    assert read(conversation.sharegpt, {"conversations": CHAT}).messages == CHAT


def test_the_system_prompt_beside_sharegpt_comes_first() -> None:
    turns = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    found = read(conversation.sharegpt, {"conversations": turns, "system": "s"})
    assert found.messages == [system("s"), user("q"), assistant("a")]
    for none in (None, ""):
        assert read(conversation.sharegpt, {"conversations": turns, "system": none}).messages == CHAT


@pytest.mark.parametrize(
    ("value", "functions"),
    [
        ({"name": "get", "arguments": {"city": "Paris"}}, [{"name": "get", "arguments": {"city": "Paris"}}]),
        ('{"name": "get", "arguments": {}}', [{"name": "get", "arguments": {}}]),
        ('[{"name": "a", "arguments": {}}, {"name": "b"}]', [{"name": "a", "arguments": {}}, {"name": "b"}]),
    ],
)
def test_a_function_call_of_sharegpt_is_a_tool_call_of_the_assistant(value: Any, functions: list[Any]) -> None:
    found = read(conversation.sharegpt, {"conversations": [{"from": "function_call", "value": value}]})
    (message,) = found.messages
    assert message["role"] == "assistant"
    assert [entry["function"] for entry in message["tool_calls"]] == functions


def test_other_keys_of_a_sharegpt_turn_are_kept() -> None:
    turn = {"from": "gpt", "value": "a", "reasoning_content": "why", "loss": False}
    found = read(conversation.sharegpt, {"conversations": [turn]})
    assert found.messages[0]["reasoning_content"] == "why"
    assert found.choices == {0: False}


def test_of_prompt_and_completion_only_the_completion_trains() -> None:
    found = read(
        conversation.prompt_and_completion,
        {"prompt": [user("q"), assistant("a"), user("q2")], "completion": [assistant("a2"), tool("r")]},
    )
    assert [message["content"] for message in found.messages] == ["q", "a", "q2", "a2", "r"]
    assert found.choices == {0: False, 1: False, 2: False}


def test_a_message_of_the_prompt_may_ask_to_train() -> None:
    record = {"prompt": [assistant("a", train=True), user("q")], "completion": [assistant("b", train=False)]}
    assert read(conversation.prompt_and_completion, record).choices == {0: True, 1: False, 2: False}


def test_a_completion_needs_no_prompt_but_a_message() -> None:
    assert read(conversation.prompt_and_completion, {"prompt": [], "completion": [assistant("a")]}).choices == {}
    assert refused(conversation.prompt_and_completion, {"prompt": CHAT, "completion": []}) == "empty"
    assert refused(conversation.prompt_and_completion, {"prompt": CHAT}) == "missing_field"
    assert refused(conversation.prompt_and_completion, {"completion": CHAT}) == "missing_field"
    assert refused(conversation.prompt_and_completion, {"prompt": CHAT, "completion": 3}) == "wrong_type"


def test_alpaca_becomes_a_conversation() -> None:
    record = {"instruction": "i", "input": "x", "output": "o", "system": "s", "history": [["q", "a"], ("q2", "a2")]}
    assert read(conversation.alpaca, record).messages == [
        system("s"),
        user("q"),
        assistant("a"),
        user("q2"),
        assistant("a2"),
        user("i\n\nx"),
        assistant("o"),
    ]
    for nothing in (None, ""):
        bare = {"instruction": "i", "input": nothing, "output": "o", "system": nothing, "history": None}
        assert read(conversation.alpaca, bare).messages == [user("i"), assistant("o")]


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"output": "o"}, "missing_field"),
        ({"instruction": "i"}, "missing_field"),
        ({"instruction": 3, "output": "o"}, "wrong_type"),
        ({"instruction": "i", "input": 3, "output": "o"}, "wrong_type"),
        ({"instruction": "i", "output": ""}, "empty"),
        ({"instruction": "i", "output": " \n"}, "empty"),
        ({"instruction": "i", "output": "o", "history": [["q"]]}, "wrong_type"),
        ({"instruction": "i", "output": "o", "history": [["q", 3]]}, "wrong_type"),
        ({"instruction": "i", "output": "o", "history": ["qa"]}, "wrong_type"),
        ({"instruction": "i", "output": "o", "history": "q"}, "wrong_type"),
        ({"instruction": "i", "output": "o", "system": 3}, "wrong_type"),
    ],
)
def test_each_reason_of_alpaca(record: dict[str, Any], reason: str) -> None:
    assert refused(conversation.alpaca, record) == reason


# --- what is no conversation ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "empty"),
        ("[]", "empty"),
        (None, "missing_field"),
        (3, "wrong_type"),
        ({"role": "user"}, "wrong_type"),
        ("not json", "wrong_type"),
        ('{"role": "user"}', "wrong_type"),
        (["text"], "wrong_type"),
        ([None], "wrong_type"),
        ([{"content": "no role"}], "bad_role"),
        ([{"role": None, "content": "x"}], "bad_role"),
        ([{"role": "", "content": "x"}], "bad_role"),
        ([{"role": 3, "content": "x"}], "bad_role"),
        ([user(3)], "wrong_type"),
        ([user({"text": "x"})], "wrong_type"),
        ([user(["text"])], "unsupported_part"),
        ([user([{"type": "image_url", "image_url": "x"}])], "unsupported_part"),
        ([user([{"type": "text"}])], "unsupported_part"),
        ([user([{"type": "text", "text": 3}])], "unsupported_part"),
        ([user([{"text": "no type"}])], "unsupported_part"),
        ([user("fine"), user([{"type": "text", "text": "x"}, {"type": "audio"}])], "unsupported_part"),
    ],
)
def test_each_reason(messages: Any, reason: str) -> None:
    assert messages_of(messages) == reason


def test_a_missing_column_and_a_null_are_told_apart() -> None:
    absent, null = conversation.openai({}, False), conversation.openai({"messages": None}, False)
    assert isinstance(absent, Refusal)
    assert isinstance(null, Refusal)
    assert (absent.detail, null.detail) == ("field 'messages' is not there", "field 'messages' is null")


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"value": "x"}, "bad_role"),
        ({"from": None, "value": "x"}, "bad_role"),
        ({"from": "narrator", "value": "x"}, "bad_role"),
        ({"from": ["human"], "value": "x"}, "bad_role"),
        ("human: x", "wrong_type"),
        ({"from": "human", "value": 3}, "wrong_type"),
        ({"from": "function_call", "value": "get()"}, "wrong_type"),
        ({"from": "function_call", "value": '{"arguments": {}}'}, "wrong_type"),
        ({"from": "function_call", "value": None}, "wrong_type"),
        ({"from": "function_call", "value": []}, "wrong_type"),
    ],
)
def test_each_reason_of_sharegpt(turn: Any, reason: str) -> None:
    assert refused(conversation.sharegpt, {"conversations": [turn]}) == reason


def test_a_message_says_where_it_is() -> None:
    found = conversation.openai({"messages": [user("q"), {"role": 7, "content": "x"}]}, False)
    assert isinstance(found, Refusal)
    assert found.detail == "message 2 has the role '7'"


# --- tools and variables -------------------------------------------------------------------------------------

SCHEMA = {"type": "function", "function": {"name": "get", "parameters": {"type": "object", "properties": {}}}}


@pytest.mark.parametrize("tools", [[SCHEMA], json.dumps([SCHEMA]), [json.dumps(SCHEMA)]])
def test_tools_are_a_list_or_json(tools: Any) -> None:
    assert openai({"messages": CHAT, "tools": tools}).tools == [SCHEMA]


@pytest.mark.parametrize("tools", [None, "", "  "])
def test_no_tools_are_none(tools: Any) -> None:
    assert openai({"messages": CHAT, "tools": tools}).tools is None
    assert openai({"messages": CHAT}).tools is None


def test_an_empty_list_of_tools_is_a_list() -> None:
    assert openai({"messages": CHAT, "tools": []}).tools == []


@pytest.mark.parametrize("tools", [3, {}, "{}", "get", [3], ["get"], [None], "[3"])
def test_tools_of_another_kind_are_refused(tools: Any) -> None:
    assert refused(conversation.openai, {"messages": CHAT, "tools": tools}) == "wrong_type"


def test_a_record_may_bring_variables_of_its_own() -> None:
    extra = {"enable_thinking": False, "none": None}
    assert openai({"messages": CHAT, "chat_template_kwargs": extra}).extra == extra
    assert openai({"messages": CHAT, "chat_template_kwargs": None}).extra == {}
    assert refused(conversation.openai, {"messages": CHAT, "chat_template_kwargs": [1]}) == "wrong_type"


# --- what the record says of its loss ------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["train", "training", "loss"])
def test_a_message_may_say_whether_it_trains(key: str) -> None:
    found = openai({"messages": [user("q", **{key: True}), assistant("a", **{key: False}), assistant("b")]})
    assert found.choices == {0: True, 1: False}


def test_a_weight_is_a_choice() -> None:
    found = openai({"messages": [user("q", weight=1), assistant("a", weight=0), assistant("b", weight=1.0)]})
    assert found.choices == {0: True, 1: False, 2: True}


def test_a_null_choice_is_none() -> None:
    assert openai({"messages": [user("q", train=None), assistant("a", weight=None, loss=True)]}).choices == {1: True}


def test_parts_may_say_it_too() -> None:
    parts = [
        {"type": "text", "text": "x", "train": False},
        {"type": "text", "text": "y"},
        {"type": "text", "text": "z", "weight": 1},
    ]
    found = openai({"messages": [user("q"), assistant(parts)]})
    assert found.part_choices == {(1, 0): False, (1, 2): True}
    assert found.choices == {}


@pytest.mark.parametrize(
    "said",
    [
        {"train": True, "loss": False},
        {"training": False, "weight": 1},
        {"train": 1},
        {"train": "true"},
        {"loss": 0.5},
        {"weight": 0.5},
        {"weight": 2},
        {"weight": "1"},
        {"weight": [1]},
    ],
)
def test_choices_that_disagree_or_are_none_are_a_bad_mask(said: dict[str, Any]) -> None:
    assert messages_of([user("q"), assistant("a", **said)]) == "bad_mask"
    assert messages_of([user("q"), assistant([{"type": "text", "text": "a", **said}])]) == "bad_mask"


def test_choices_that_agree_are_one() -> None:
    assert openai({"messages": [assistant("a", train=True, loss=True, weight=1)]}).choices == {0: True}


# --- reasoning, nulls, arguments -----------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
def test_reasoning_goes_by_every_name_that_templates_read(key: str) -> None:
    (message,) = openai({"messages": [assistant("a", **{key: "why"})]}).messages
    assert (message["reasoning_content"], message["thinking"]) == ("why", "why")
    assert message[key] == "why"


def test_a_null_is_data_where_a_null_can_be_written() -> None:
    message = {"role": "assistant", "content": None, "tool_calls": None, "name": None}
    assert openai({"messages": [message]}).messages == [message]


def test_a_null_in_a_column_of_structs_is_not_there() -> None:
    calls = [{"function": {"name": "get", "arguments": {"x": 1, "y": None}}, "id": None}]
    message = {"role": "assistant", "content": None, "tool_calls": calls, "name": None}
    tools = [{"type": "function", "function": {"name": "get", "strict": None, "parameters": {"enum": [None, "a"]}}}]
    record = {"messages": [message], "tools": tools, "chat_template_kwargs": {"a": None, "b": 1}}
    found = openai(record, columnar=True)
    assert found.messages == [
        {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "get", "arguments": {"x": 1}}}]}
    ]
    assert found.tools == [{"type": "function", "function": {"name": "get", "parameters": {"enum": [None, "a"]}}}]
    assert found.extra == {"b": 1}


def test_nulls_inside_a_json_string_stay_whatever_the_column() -> None:
    messages = [{"role": "assistant", "content": "a", "name": None}]
    assert openai({"messages": json.dumps(messages)}, columnar=True).messages == messages


def test_arguments_that_are_json_strings_can_be_parsed() -> None:
    messages = [
        user("q"),
        assistant("", tool_calls=[{"function": {"name": "get", "arguments": '{"a": [1, null]}'}}, call(b=2)]),
        assistant("", tool_calls=[{"name": "bare", "arguments": "{}"}]),
    ]
    parsed = with_parsed_arguments(messages)
    assert parsed is not None
    assert parsed[0] is messages[0]
    assert parsed[1]["tool_calls"][0]["function"]["arguments"] == {"a": [1, None]}
    assert parsed[1]["tool_calls"][1] == call(b=2)
    assert parsed[2]["tool_calls"][0]["arguments"] == {}
    assert messages[1]["tool_calls"][0]["function"]["arguments"] == '{"a": [1, null]}'


@pytest.mark.parametrize("arguments", [None, {}, "not json", '{"a": ' * 2_000, 3])
def test_without_arguments_that_can_be_parsed_there_is_nothing_to_try_again(arguments: Any) -> None:
    message = assistant("", tool_calls=[{"function": {"name": "get", "arguments": arguments}}, "get", None])
    assert with_parsed_arguments([message, assistant("", tool_calls="get"), user("q")]) is None


@pytest.mark.parametrize(
    ("turn", "reason"),
    [
        ({"from": "gpt", "text": "a"}, "missing_field"),
        ({"from": "gpt", "value": "a", "content": "b"}, "wrong_type"),
        ({"from": "gpt", "value": "a", "role": "user"}, "wrong_type"),
    ],
)
def test_a_sharegpt_turn_has_one_value(turn: dict[str, str], reason: str) -> None:
    made = conversation.sharegpt({"conversations": [{"from": "human", "value": "q"}, turn]}, False)
    assert isinstance(made, Refusal)
    assert made.reason == reason


def test_null_keys_beside_a_sharegpt_value_do_not_hide_it() -> None:
    turns = [
        {"from": "human", "value": "q", "content": None},
        {"from": "gpt", "value": "a", "content": None, "role": None},
    ]
    for columnar in (False, True):
        made = conversation.sharegpt({"conversations": turns}, columnar)
        assert isinstance(made, Conversation)
        assert [(message["role"], message["content"]) for message in made.messages] == [
            ("user", "q"),
            ("assistant", "a"),
        ]


def test_a_message_without_any_content_is_a_bad_record() -> None:
    made = conversation.openai({"messages": [{"role": "user", "text": "q"}, {"role": "assistant", "text": "a"}]}, False)
    assert isinstance(made, Refusal)
    assert made.reason == "missing_field"
