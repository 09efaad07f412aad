"""Conversations through a whole run: what trains, what is left out and counted, and that the source does not matter."""

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer

from packtool.errors import BadData, Misuse
from packtool.rendering import Rendered
from packtool.run import pack
from packtool.verification import verify
from tests.chats import assistant, both, call, marked, render, system, tool, unmarked, user
from tests.runs import TOKENIZER, config, rejects, rows, run, segments, write_jsonl
from tests.tokenizer_builder import around, byte_level, save

DATED = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ' ' + strftime_now('%Y-%m-%d') + '\\n' + m.content }}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant ' + strftime_now('%Y-%m-%d') + '\\n' }}{% endif %}"
)
"""ChatML with today's date in every header."""
TALK = [user("How far is it?"), assistant("Two hours on foot."), user("And by boat?"), assistant("Less.")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))


def chat(path: Path, *conversations: Any) -> Path:
    """A source of conversations; a mapping is a whole record."""
    return write_jsonl(path, [entry if isinstance(entry, Mapping) else {"messages": entry} for entry in conversations])


def documents(folder: Path, tokenizer: Tokenizer) -> dict[int, tuple[str, list[str]]]:
    """doc id to its text and its trained texts, read from the shards alone."""
    found: dict[int, tuple[str, list[str]]] = {}
    for row in rows(folder):
        start = 0
        for doc_id, _, ids in segments(row):
            labels = row["labels"][start : start + len(ids)]
            start += len(ids)
            texts, previous = [], False
            for token, label in zip(ids, labels, strict=True):
                if label != -100:
                    assert label == token
                    texts = texts if previous else [*texts, []]
                    texts[-1].append(token)
                previous = label != -100
            decoded = [tokenizer.decode(run_of, skip_special_tokens=False) for run_of in texts]
            found[doc_id] = tokenizer.decode(list(ids), skip_special_tokens=False), decoded
    return found


def one(folder: Path, tokenizer: Tokenizer) -> list[str]:
    """The trained texts of the only document."""
    ((_, texts),) = documents(folder, tokenizer).values()
    return texts


# --- what trains ---------------------------------------------------------------------------------------------


def test_the_sample_conversations_train_only_answers(tmp_path: Path, sample_data: Path, tokenizer: Tokenizer) -> None:
    manifest = run(sample_data / "chat.jsonl", tmp_path / "out")
    lines = [json.loads(line) for line in (sample_data / "chat.jsonl").read_bytes().splitlines()]
    assert manifest.documents.out == len(lines)
    assert verify(tmp_path / "out").ok
    for doc_id, (text, answers) in documents(tmp_path / "out", tokenizer).items():
        spoken = [message for message in lines[doc_id]["messages"] if message["role"] == "assistant"]
        assert len(answers) == len(spoken)
        assert text.count("<|im_start|>assistant\n") == len(spoken)
        for message, answer in zip(spoken, answers, strict=True):
            assert answer.endswith("<|im_end|>")
            assert answer.count("<|im_end|>") == 1
            assert (message["content"] or "") in answer


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        ({}, ["Two hours on foot.<|im_end|>", "Less.<|im_end|>"]),
        ({"train_on": "last"}, ["Less.<|im_end|>"]),
        ({"train_on": "user"}, ["How far is it?<|im_end|>", "And by boat?<|im_end|>"]),
        ({"train_on": "user,assistant"}, [*(f"{message['content']}<|im_end|>" for message in TALK)]),
        ({"end_of_turn": False}, ["Two hours on foot.", "Less."]),
        ({"end_of_turn": False, "train_on": "last"}, ["Less."]),
    ],
)
def test_options_say_what_trains(
    tmp_path: Path, tokenizer: Tokenizer, options: dict[str, Any], answers: list[str]
) -> None:
    run(chat(tmp_path / "a.jsonl", TALK), tmp_path / "out", **options)
    assert one(tmp_path / "out", tokenizer) == answers


def test_training_on_all_leaves_only_the_first_token(tmp_path: Path) -> None:
    run(chat(tmp_path / "a.jsonl", TALK), tmp_path / "out", train_on="all")
    (row,) = rows(tmp_path / "out")
    assert row["labels"] == [-100, *row["input_ids"][1:]]


def test_messages_say_themselves_what_trains(tmp_path: Path, tokenizer: Tokenizer) -> None:
    messages = [user("q", train=True), assistant("a", weight=0), user("r"), assistant("b", loss=True)]
    run(chat(tmp_path / "a.jsonl", messages), tmp_path / "out")
    assert one(tmp_path / "out", tokenizer) == ["q<|im_end|>", "b<|im_end|>"]


def test_marks_of_the_template_decide(tmp_path: Path, tokenizer: Tokenizer) -> None:
    template = tmp_path / "chat.jinja"
    text_alone = "}}{% endgeneration %}{{- '<|im_end|>' }}{% generation %}"
    template.write_text(marked("chatml").replace("+ '<|im_end|>' }}", text_alone))
    run(chat(tmp_path / "a.jsonl", TALK), tmp_path / "out", chat_template=str(template))
    assert one(tmp_path / "out", tokenizer) == ["Two hours on foot.", "Less."]


def test_marked_and_unmarked_templates_give_the_same_shards(tmp_path: Path) -> None:
    source = chat(tmp_path / "a.jsonl", TALK, [system("s"), user("q"), assistant("    def f():\n        pass")])
    for name, text in (("marked", marked("chatml")), ("unmarked", unmarked(marked("chatml")))):
        (tmp_path / f"{name}.jinja").write_text(text)
        run(source, tmp_path / name, chat_template=str(tmp_path / f"{name}.jinja"))
    assert rows(tmp_path / "marked") == rows(tmp_path / "unmarked")


def test_the_tokens_and_labels_are_those_of_transformers(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(unmarked(marked("chatml")))
    source = chat(tmp_path / "a.jsonl", TALK)
    run(source, tmp_path / "out", chat_template=str(tmp_path / "chat.jinja"))
    (row,) = rows(tmp_path / "out")
    ids, mask = both("sample").expected(marked("chatml"), TALK)
    assert row["input_ids"] == ids
    assert [label != -100 for label in row["labels"]] == [bool(train) for train in mask]


# --- every form ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("record", "options"),
    [
        ({"messages": TALK}, {}),
        ({"messages": json.dumps(TALK)}, {}),
        (
            {
                "conversations": [
                    {"from": "human" if message["role"] == "user" else "gpt", "value": message["content"]}
                    for message in TALK
                ]
            },
            {},
        ),
        ({"conversations": TALK}, {"format": "messages"}),
        ({"chat": TALK}, {"field": ["messages=chat"]}),
        (
            {
                "instruction": TALK[2]["content"],
                "input": "",
                "output": TALK[3]["content"],
                "history": [[TALK[0]["content"], TALK[1]["content"]]],
            },
            {"format": "messages"},
        ),
    ],
)
def test_every_form_of_a_conversation_is_the_same_document(
    tmp_path: Path, tokenizer: Tokenizer, record: dict[str, Any], options: dict[str, Any]
) -> None:
    run(chat(tmp_path / "a.jsonl", record), tmp_path / "out", **options)
    ((text, answers),) = documents(tmp_path / "out", tokenizer).values()
    assert text == "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in TALK)
    assert answers == ["Two hours on foot.<|im_end|>", "Less.<|im_end|>"]


def test_of_a_prompt_and_a_completion_of_messages_the_completion_trains(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run(chat(tmp_path / "a.jsonl", {"prompt": TALK[:3], "completion": TALK[3:]}), tmp_path / "out")
    assert one(tmp_path / "out", tokenizer) == ["Less.<|im_end|>"]


def test_alpaca_is_no_conversation_unless_asked_for(tmp_path: Path, tokenizer: Tokenizer) -> None:
    record = {"instruction": "Say it.", "output": "It.", "system": "s"}
    assert run(chat(tmp_path / "a.jsonl", record), tmp_path / "auto").options["format"] == "prompt_completion"
    assert "<|im_start|>" not in next(iter(documents(tmp_path / "auto", tokenizer).values()))[0]


def _from_jsonl(records: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    return write_jsonl(folder / "a.jsonl", records)


def _from_parquet(records: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    pq.write_table(pa.Table.from_pylist([dict(record) for record in records]), folder / "a.parquet")
    return folder / "a.parquet"


def _from_datasets(records: Sequence[Mapping[str, Any]], folder: Path) -> Path:
    from datasets import Dataset

    Dataset.from_list([dict(record) for record in records]).save_to_disk(str(folder / "saved"))
    return folder / "saved"


@pytest.mark.parametrize("write", [_from_parquet, _from_datasets])
def test_a_conversation_is_the_same_from_every_kind_of_file(
    tmp_path: Path, write: Callable[[Sequence[Mapping[str, Any]], Path], Path]
) -> None:
    """A column of structs brings nulls for every key that other messages have."""
    tools = [{"type": "function", "function": {"name": "get", "parameters": {"type": "object", "required": ["city"]}}}]
    records = [
        {"messages": [user("q"), assistant("a", reasoning_content="why"), user("r"), assistant("b")], "tools": None},
        {
            "messages": [
                user("weather?"),
                {"role": "assistant", "content": None, "tool_calls": [call(city="Paris")]},
                {"role": "tool", "content": "sunny", "tool_call_id": "call12345"},
                {"role": "assistant", "content": "", "tool_calls": [call("other", depth=3)]},
                {"role": "tool", "content": "blue", "tool_call_id": "call12345"},
                assistant("Sunny."),
            ],
            "tools": tools,
        },
        {"messages": [user("q", train=True), assistant("a", train=False)], "tools": None},
    ]
    (tmp_path / "chat.jinja").write_text(
        "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}"
        "{{ 'named ' if m.name is defined }}{{ 'calls ' if m.tool_calls is defined }}{{ m.reasoning_content or '' }}"
        "{{ m.content or '' }}{{ m.tool_calls | tojson if m.tool_calls }}{{ '<|im_end|>\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    )
    packed = {}
    for name, writer in (("jsonl", _from_jsonl), ("other", write)):
        (tmp_path / name).mkdir()
        source = writer(records, tmp_path / name)
        manifest = run(source, tmp_path / f"out-{name}", chat_template=str(tmp_path / "chat.jinja"))
        assert manifest.documents.out == 3
        packed[name] = rows(tmp_path / f"out-{name}")
    assert packed["jsonl"] == packed["other"]


def test_a_null_in_json_is_data(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "chat.jinja").write_text("{% for m in messages %}{{ m.content }}{{ m.name is defined }}{% endfor %}")
    source = chat(tmp_path / "a.jsonl", [user("q", name=None)])
    run(source, tmp_path / "out", chat_template=str(tmp_path / "chat.jinja"), train_on="all")
    ((text, _),) = documents(tmp_path / "out", tokenizer).values()
    assert text == "qTrue"


# --- what is left out ----------------------------------------------------------------------------------------


def test_every_reason_is_listed_with_its_line(tmp_path: Path) -> None:
    source = chat(
        tmp_path / "a.jsonl",
        [],
        [{"content": "x"}],
        [user([{"type": "image"}])],
        [user("only a question")],
        [system("odd"), assistant("a")],
        TALK,
    )
    (tmp_path / "chat.jinja").write_text(unmarked(marked("model_turns")).replace("_turn>", "_|>"))
    options = {"chat_template": str(tmp_path / "chat.jinja"), "max_left_out": 100, "on_bad_record": "skip"}
    run(source, tmp_path / "out", **options)
    assert [(entry["line"], entry["reason"]) for entry in rejects(tmp_path / "out")] == [
        (1, "empty"),
        (2, "bad_role"),
        (3, "unsupported_part"),
        (4, "nothing_to_train"),
        (5, "template_error"),
    ]
    assert rejects(tmp_path / "out")[4]["detail"] == "Roles must alternate user/assistant/user/assistant/..."
    assert verify(tmp_path / "out").ok


def test_choices_that_disagree_stop_the_run_as_a_bad_record(tmp_path: Path) -> None:
    source = chat(tmp_path / "a.jsonl", TALK, [user("q"), assistant("a", train=True, weight=0)])
    with pytest.raises(BadData, match=r"a\.jsonl:2: bad_mask: message 2: train and weight disagree"):
        run(source, tmp_path / "out")


def test_too_many_left_out_stop_the_run_with_the_templates_words(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(unmarked(marked("model_turns")))
    source = chat(tmp_path / "a.jsonl", *[TALK] * 10, [user("a"), user("b")])
    options = {"chat_template": str(tmp_path / "chat.jinja")}
    with pytest.raises(BadData, match=r"a\.jsonl:11: template_error: Roles must alternate.*--max-left-out 1%"):
        run(source, tmp_path / "out", **options)
    manifest = run(source, tmp_path / "out", **options, max_left_out=10)
    assert (manifest.documents.out, manifest.documents.left_out) == (10, 1)


def test_what_cannot_be_proven_is_left_out_and_never_trained(tmp_path: Path, tokenizer: Tokenizer) -> None:
    said = "('hidden' if messages | length > 2 else m.content)"
    (tmp_path / "chat.jinja").write_text(f"{{% for m in messages %}}{{{{ {said} + '<|im_end|>' }}}}{{% endfor %}}")
    source = chat(tmp_path / "a.jsonl", TALK, [user("q"), assistant("a")])
    run(source, tmp_path / "out", chat_template=str(tmp_path / "chat.jinja"), max_left_out=50)
    (left,) = rejects(tmp_path / "out")
    assert (left["line"], left["reason"]) == (1, "span_unprovable")
    assert one(tmp_path / "out", tokenizer) == ["a<|im_end|>"]


# --- lengths -------------------------------------------------------------------------------------------------


def test_long_conversations_end_with_a_whole_trained_turn(tmp_path: Path, tokenizer: Tokenizer) -> None:
    long = [message for number in range(6) for message in (user(f"q {number} " * 5), assistant(f"a {number} " * 5))]
    source = chat(tmp_path / "a.jsonl", TALK, long, [user("x " * 200), assistant("a")])
    run(source, tmp_path / "out", max_length=128, overlong="truncate_turns")
    found = documents(tmp_path / "out", tokenizer)
    assert set(found) == {0, 1}
    text, answers = found[1]
    assert text.endswith("<|im_end|>")
    assert text.endswith(answers[-1])
    whole = [f"{message['content']}<|im_end|>" for message in long if message["role"] == "assistant"]
    assert answers == whole[: len(answers)]
    assert 0 < len(answers) < len(whole)
    listed = {(entry["line"], entry["reason"]) for entry in rejects(tmp_path / "out")}
    assert {(2, "truncated"), (3, "overlong")} == listed or {(2, "truncated"), (3, "nothing_to_train")} == listed
    assert verify(tmp_path / "out").ok


def test_turns_are_cut_of_conversations_only(tmp_path: Path) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"prompt": "p", "completion": "c"}])
    with pytest.raises(Misuse, match="--overlong truncate_turns is for conversations"):
        run(source, tmp_path / "out", overlong="truncate_turns")


@pytest.mark.parametrize(
    "option",
    [{"train_on": "all"}, {"end_of_turn": False}, {"template_date": "2026-01-01"}, {"template_arg": ["a=1"]}],
)
def test_options_for_conversations_are_refused_elsewhere(tmp_path: Path, option: dict[str, Any]) -> None:
    source = write_jsonl(tmp_path / "a.jsonl", [{"text": "x y z"}])
    with pytest.raises(Misuse, match=f"--{next(iter(option)).replace('_', '-')} is for conversations"):
        run(source, tmp_path / "out", **option)


# --- templates and their date ----------------------------------------------------------------------------------


@pytest.fixture
def dated(tmp_path: Path) -> Path:
    (tmp_path / "dated.jinja").write_text(DATED)
    return tmp_path / "dated.jinja"


def on_day(patch: pytest.MonkeyPatch, day: str) -> None:
    """Let the runs of this process start on another day."""

    class Day(date):
        @classmethod
        def today(cls) -> "Day":
            return cls.fromisoformat(day)

    patch.setattr("packtool.job.date", Day)


def test_the_date_is_that_of_the_option(tmp_path: Path, dated: Path, tokenizer: Tokenizer) -> None:
    source = chat(tmp_path / "a.jsonl", TALK)
    manifest = run(source, tmp_path / "out", chat_template=str(dated), template_date="2024-02-29")
    ((text, answers),) = documents(tmp_path / "out", tokenizer).values()
    assert text.startswith("<|im_start|>user 2024-02-29\n")
    assert answers == ["Two hours on foot.<|im_end|>", "Less.<|im_end|>"]
    assert manifest.options["template_date"] == "2024-02-29"


def test_the_default_date_is_that_of_the_first_start(
    tmp_path: Path, dated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = chat(tmp_path / "a.jsonl", TALK)
    options = config(source, tmp_path / "out", chat_template=str(dated))
    on_day(monkeypatch, "2026-03-01")
    first = pack(options)
    on_day(monkeypatch, "2026-03-02")
    assert first.options["template_date"] == "2026-03-01"
    assert pack(options).content_digest == first.content_digest  # done already, whatever the day
    with pytest.raises(Misuse, match="template_date 2026-03-02, not 2026-03-01"):
        run(source, tmp_path / "out", chat_template=str(dated), template_date="2026-03-02")
    run(source, tmp_path / "out", chat_template=str(dated), template_date="2026-03-01")


def test_a_run_that_is_continued_on_another_day_keeps_its_date(
    tmp_path: Path, dated: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = chat(tmp_path / "a.jsonl", TALK)
    options = config(source, tmp_path / "out", chat_template=str(dated))
    on_day(monkeypatch, "2026-03-01")

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("packtool.run.write_shards", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(options)
    on_day(monkeypatch, "2026-03-02")
    assert pack(options).options["template_date"] == "2026-03-01"


def test_a_template_that_prints_no_date_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = chat(tmp_path / "a.jsonl", TALK)
    on_day(monkeypatch, "2026-03-01")
    first = run(source, tmp_path / "out")
    assert first.options["template_date"] is None
    on_day(monkeypatch, "2026-03-02")
    assert run(source, tmp_path / "out", template_date="2020-01-01").content_digest == first.content_digest


def test_arguments_of_the_template_are_part_of_the_command(tmp_path: Path, tokenizer: Tokenizer) -> None:
    (tmp_path / "chat.jinja").write_text("{{ tone }}" + unmarked(marked("chatml")))
    source = chat(tmp_path / "a.jsonl", TALK, {"messages": TALK, "chat_template_kwargs": {"tone": "wet"}})
    options = {"chat_template": str(tmp_path / "chat.jinja")}
    run(source, tmp_path / "out", **options, template_arg=["tone=dry"])
    texts = [text for text, _ in documents(tmp_path / "out", tokenizer).values()]
    assert sorted(text.partition("<")[0] for text in texts) == ["dry", "wet"]
    with pytest.raises(Misuse, match="another command"):
        run(source, tmp_path / "out", **options, template_arg=["tone=sour"])


def test_another_template_is_another_command(tmp_path: Path) -> None:
    source = chat(tmp_path / "a.jsonl", TALK)
    run(source, tmp_path / "out")
    (tmp_path / "chat.jinja").write_text(unmarked(marked("chatml")) + " ")
    with pytest.raises(Misuse, match=r"another command \(template"):
        run(source, tmp_path / "out", chat_template=str(tmp_path / "chat.jinja"))


def named_templates(folder: Path) -> Path:
    """A tokenizer that has two templates by name."""
    template = "{% for m in messages %}{{ 'NAME:' + m.content + '</s>' }}{% endfor %}"
    config = {
        "eos_token": "</s>",
        "chat_template": [
            {"name": name, "template": template.replace("NAME", name)} for name in ("default", "tool_use", "rag")
        ],
    }
    save(byte_level(), folder, config)
    return folder


def test_a_template_is_chosen_by_name_and_the_one_for_tools_by_itself(tmp_path: Path) -> None:
    folder = str(named_templates(tmp_path / "tok"))
    made = Tokenizer.from_file(f"{folder}/tokenizer.json")
    source = chat(tmp_path / "a.jsonl", [user("q")], {"messages": [user("q")], "tools": [call()]})

    def texts(out: str, **options: Any) -> list[str]:
        run(source, tmp_path / out, tokenizer=folder, train_on="all", **options)
        return [made.decode(ids).replace(" ", "") for row in rows(tmp_path / out) for _, _, ids in segments(row)]

    assert sorted(texts("auto")) == ["default:q", "tool_use:q"]
    assert texts("rag", chat_template="rag") == ["rag:q", "rag:q"]
    words = r"--chat-template nope: neither a file nor a template of .*default, rag, tool_use"
    with pytest.raises(Misuse, match=words):
        run(source, tmp_path / "nope", tokenizer=folder, chat_template="nope")


def test_without_a_template_conversations_are_misuse(tmp_path: Path) -> None:
    save(byte_level(), tmp_path / "tok", {"eos_token": "</s>"})
    with pytest.raises(Misuse, match="the tokenizer has no chat template"):
        run(chat(tmp_path / "a.jsonl", TALK), tmp_path / "out", tokenizer=str(tmp_path / "tok"))


def test_a_template_that_does_not_compile_is_misuse(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text("\n{% for %}")
    with pytest.raises(Misuse, match=r"chat\.jinja:2: the chat template does not compile"):
        run(chat(tmp_path / "a.jsonl", TALK), tmp_path / "out", chat_template=str(tmp_path / "chat.jinja"))


# --- tokens --------------------------------------------------------------------------------------------------


def test_there_is_never_a_second_bos_nor_an_eos_behind_the_template(tmp_path: Path) -> None:
    """The template writes BOS and its own ends; the tokenizer's post-processor would put one around the text too."""
    save(around(byte_level(), "<s> $A </s>"), tmp_path / "tok", {"bos_token": "<s>", "eos_token": "</s>"})
    (tmp_path / "chat.jinja").write_text(unmarked(marked("inst")))
    source = chat(tmp_path / "a.jsonl", [user("q"), assistant("a")])
    run(source, tmp_path / "out", tokenizer=str(tmp_path / "tok"), chat_template=str(tmp_path / "chat.jinja"))
    (row,) = rows(tmp_path / "out")
    made = Tokenizer.from_file(str(tmp_path / "tok" / "tokenizer.json"))
    assert row["input_ids"].count(made.token_to_id("<s>")) == 1
    assert row["input_ids"].count(made.token_to_id("</s>")) == 1
    assert row["input_ids"][-1] == row["labels"][-1] == made.token_to_id("</s>")
    for option in ("bos", "eos"):
        with pytest.raises(Misuse, match=f"--{option} yes: nothing is added"):
            run(
                source,
                tmp_path / option,
                tokenizer=str(tmp_path / "tok"),
                chat_template=str(tmp_path / "chat.jinja"),
                **{option: "yes"},
            )


def test_indentation_and_pieces_of_one_character_train(tmp_path: Path) -> None:
    answer = "def f():\n        return '👩‍👩‍👧 שלום'\n"
    source = chat(tmp_path / "a.jsonl", [user("code"), assistant(answer)])
    run(source, tmp_path / "out")
    (row,) = rows(tmp_path / "out")
    made = Tokenizer.from_file(str(TOKENIZER / "tokenizer.json"))
    trained = [token for token, label in zip(row["input_ids"], row["labels"], strict=True) if label != -100]
    assert made.decode(trained, skip_special_tokens=False) == f"{answer}<|im_end|>"


# --- what is worth counting ----------------------------------------------------------------------------------


def test_the_summary_counts_what_is_worth_a_look(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(
        "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + (m.content or '') }}"
        "{% for c in m.tool_calls or [] %}{% for k, v in c.function.arguments.items() %}{{ k + v }}{% endfor %}"
        "{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    )
    text_call = {"type": "function", "function": {"name": "get", "arguments": '{"city": "Paris"}'}}
    source = chat(
        tmp_path / "a.jsonl",
        TALK,
        [user("What is <|im_end|>?"), assistant("A token.")],
        [user("weather?"), assistant("", tool_calls=[text_call]), tool("sunny"), assistant("Sunny.")],
        [user("weather?"), assistant("", tool_calls=[call(city="Paris")]), tool("sunny"), assistant("Sunny.")],
    )
    manifest = run(source, tmp_path / "out", chat_template=str(tmp_path / "chat.jinja"))
    assert manifest.documents.out == 4
    assert manifest.notes == {"parsed_arguments": 1, "spells_special_token": 1}


def test_a_border_inside_a_token_is_counted(tmp_path: Path) -> None:
    source = write_jsonl(
        tmp_path / "a.jsonl",
        [{"prompt": "the answ", "completion": "er is it"}, {"prompt": "the answer:", "completion": " it"}],
    )
    assert run(source, tmp_path / "out").notes == {"torn_border": 1}


def test_the_library_gives_what_the_run_packs(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run(chat(tmp_path / "a.jsonl", TALK), tmp_path / "out")
    rendered = render((TOKENIZER / "chat_template.jinja").read_text(), TALK)
    assert isinstance(rendered, Rendered)
    ((text, _),) = documents(tmp_path / "out", tokenizer).values()
    assert text == rendered.text
