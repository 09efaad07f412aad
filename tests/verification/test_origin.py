"""A dataset and its sources: what was packed is found again, and what was not is named with file, line and token."""

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from packtool import BadData, Misuse
from packtool.verification import VerifyReport, verify
from tests import runs
from tests.dataset_builder import change_manifest
from tests.verification.agreement import agree, read, written
from tests.verification.bases import Made, faults
from tests.verification.corruptions import find

TEXTS = [{"text": f"{'some words ' * (n % 7)}and the number {n}"} for n in range(40)]
ANSWERS = [{"prompt": f"What is {n}? " * (1 + n % 3), "completion": f"It is {n}." * (1 + n % 4)} for n in range(30)]
CHATS = [
    {"messages": [{"role": "user", "content": f"Is it {n}?"}, {"role": "assistant", "content": f"It is {n}. " * n}]}
    for n in range(1, 12)
]
TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n{% endfor %}"


def compared(folder: Path, sources: list[Path], **options: Any) -> VerifyReport:
    """Verify in this process."""
    return verify(folder, sources, workers=1, **options)


RUNS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "text": (TEXTS, {}),
    "text_without_eos": (TEXTS, {"eos": "no"}),
    "another_eos": (TEXTS, {"eos_token": "<|im_end|>"}),
    "another_column": ([{"body": record["text"], "more": 1} for record in TEXTS], {"field": {"text": "body"}}),
    "the_first_records": (TEXTS, {"limit": 13}),
    "long_records_refused": (TEXTS, {"max_record_bytes": 60, "on_bad_record": "skip"}),
    "prompts": (ANSWERS, {"strategy": "bfd", "overlong": "truncate", "max_length": 16}),
    "conversations": (CHATS, {"overlong": "truncate_turns"}),
    "all_of_conversations": (CHATS, {"train_on": ["all"], "strategy": "wrapped"}),
    "one_of_several_shapes": (
        [{**record, "instruction": "What?", "output": "That."} for record in CHATS],
        {"format": "messages", "field": {"messages": "messages"}},
    ),
    "users_in_order": (CHATS, {"train_on": ["user"], "end_of_turn": False, "strategy": "in_order"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_found_again_in_its_sources(tmp_path: Path, name: str) -> None:
    records, options = RUNS[name]
    source = runs.write_jsonl(tmp_path / "a.jsonl", records)
    runs.run(source, tmp_path / "out", **{"max_length": 64, **options})
    report = compared(tmp_path / "out", [source])
    assert report.ok, report
    (check,) = (check for check in report.checks if check.name == "source")
    assert check.checked == options.get("limit", len(records))


def test_one_source_needs_no_list_and_none_is_misuse(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", TEXTS)
    runs.run(source, tmp_path / "out", max_length=64)
    for one in (source, str(source)):
        assert verify(tmp_path / "out", one, workers=1).ok
    with pytest.raises(Misuse, match="none is given"):
        verify(tmp_path / "out", [])


def test_files_of_every_kind_are_read_again(tmp_path: Path) -> None:
    columns = pa.table({"text": [record["text"] for record in TEXTS]})
    pq.write_table(columns, tmp_path / "a.parquet")
    lines = runs.write_jsonl(tmp_path / "lines", TEXTS).read_bytes()
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "c.json").write_bytes(b"[" + lines.strip().replace(b"\n", b",") + b"]")
    sources = [tmp_path / "a.parquet", tmp_path / "b.jsonl.gz", tmp_path / "c.json"]
    runs.run(sources, tmp_path / "out", max_length=64)
    assert compared(tmp_path / "out", sources).ok


def test_a_source_may_have_moved(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", TEXTS)
    runs.run(source, tmp_path / "out", max_length=64)
    (tmp_path / "elsewhere").mkdir()
    moved = source.rename(tmp_path / "elsewhere" / "b.jsonl")
    assert compared(tmp_path / "out", [moved]).ok


# --- other sources -------------------------------------------------------------------------------------------


@pytest.fixture
def packed(tmp_path: Path) -> tuple[Path, Path]:
    """A dataset of text and its source."""
    source = runs.write_jsonl(tmp_path / "a.jsonl", TEXTS)
    runs.run(source, tmp_path / "out", max_length=64)
    return tmp_path / "out", source


@pytest.mark.parametrize(
    "records", [TEXTS[:-1], [*TEXTS, {"text": "more"}], [{"text": "other"}, *TEXTS[1:]], [*TEXTS[1:], TEXTS[0]]]
)
def test_a_source_that_changed_is_named_once(packed: tuple[Path, Path], records: list[dict[str, Any]]) -> None:
    folder, source = packed
    runs.write_jsonl(source, records)
    report = compared(folder, [source])
    assert faults(report) == {"source": "source 'a.jsonl': is not the file that was packed, or has changed since"}


def test_another_number_of_sources_is_named(packed: tuple[Path, Path]) -> None:
    folder, source = packed
    other = shutil.copy(source, source.with_name("b.jsonl"))
    assert "they are 2, and it was made from 1" in faults(compared(folder, [source, other]))["source"]


def test_records_of_another_kind_are_named(packed: tuple[Path, Path]) -> None:
    folder, source = packed
    runs.write_jsonl(source, ANSWERS)
    assert "the sources are not what it was made from: " in faults(compared(folder, [source]))["source"]


def test_a_source_that_is_not_there_is_misuse(packed: tuple[Path, Path]) -> None:
    with pytest.raises(Misuse, match="does not exist"):
        compared(packed[0], [packed[1].with_name("none.jsonl")])


@pytest.mark.parametrize("sample", [0, -1, 5])
def test_a_sample_is_of_sources(packed: tuple[Path, Path], sample: int) -> None:
    sources = None if sample == 5 else [packed[1]]
    with pytest.raises(Misuse, match="--sample"):
        verify(packed[0], sources, sample=sample)


def test_without_a_manifest_there_is_nothing_to_compare(tmp_path: Path) -> None:
    with pytest.raises(BadData, match="not a packed dataset"):
        compared(tmp_path, [tmp_path])


# --- templates that are not the tokenizer's --------------------------------------------------------------------


def test_another_chat_template_is_asked_for(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", CHATS)
    (tmp_path / "t.jinja").write_text(TEMPLATE)
    (tmp_path / "other.jinja").write_text(TEMPLATE + "!")
    runs.run(source, tmp_path / "out", max_length=64, chat_template=str(tmp_path / "t.jinja"), max_left_out=100)
    with pytest.raises(Misuse, match="a template that is not kept in it; give it with --chat-template FILE"):
        compared(tmp_path / "out", [source])
    with pytest.raises(Misuse, match="not the template that the dataset was made with"):
        compared(tmp_path / "out", [source], chat_template=str(tmp_path / "other.jinja"))
    assert compared(tmp_path / "out", [source], chat_template=str(tmp_path / "t.jinja")).ok


def test_a_prompt_template_is_asked_for(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", ANSWERS)
    template = tmp_path / "p.jinja"
    template.write_text("Q: {{ prompt }}\nA: ")
    runs.run(source, tmp_path / "out", max_length=64, prompt_template=template)
    with pytest.raises(Misuse, match="give it with --prompt-template FILE"):
        compared(tmp_path / "out", [source])
    assert compared(tmp_path / "out", [source], prompt_template=template).ok


def test_a_template_that_is_not_the_one_is_misuse_before_anything_is_read(tmp_path: Path) -> None:
    source = runs.write_jsonl(tmp_path / "a.jsonl", CHATS)
    prompts = runs.write_jsonl(tmp_path / "p.jsonl", ANSWERS)
    template = tmp_path / "t.jinja"
    template.write_text("{% broken")
    runs.run(source, tmp_path / "chats", max_length=64)
    runs.run(prompts, tmp_path / "prompts", max_length=64)
    nowhere = str(tmp_path / "nowhere")
    for folder, options, told in (
        ("chats", {"chat_template": nowhere}, "neither a file nor a template"),
        ("chats", {"chat_template": str(template)}, "not the template that the dataset was made with"),
        ("chats", {"prompt_template": str(template)}, "was made without one; leave it out"),
        ("prompts", {"prompt_template": nowhere}, "cannot read the prompt template"),
        ("prompts", {"prompt_template": str(template)}, "was made without one; leave it out"),
        ("prompts", {"chat_template": str(template)}, "was made without one; leave it out"),
    ):
        with pytest.raises(Misuse, match=told):
            compared(tmp_path / folder, [prompts], **options)


# --- names -----------------------------------------------------------------------------------------------------


def test_names_that_were_changed_round_are_found_and_other_names_are_not(tmp_path: Path) -> None:
    for name, records in (("a.jsonl", TEXTS[:20]), ("b.jsonl", TEXTS[20:]), ("c.jsonl", TEXTS[:3])):
        runs.write_jsonl(tmp_path / name, records)
    sources = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    runs.run(sources, tmp_path / "out", max_length=64)
    moved = [source.rename(source.with_name(f"{5 - number}.jsonl")) for number, source in enumerate(sources)]
    assert compared(tmp_path / "out", moved).ok, "files may have other names by now"
    for source, now in zip(sources, moved, strict=True):
        now.rename(source)
    rejects = tmp_path / "out" / "rejects.jsonl"
    assert not rejects.read_text(), "no row names a source"

    def swap(values: dict[str, Any]) -> None:
        first, second, _ = values["sources"]
        first["name"], second["name"] = second["name"], first["name"]

    change_manifest(tmp_path / "out", swap)
    told = faults(compared(tmp_path / "out", sources))
    assert set(told) == {"source"}
    assert "source 1 is 'a.jsonl', and in the manifest 'b.jsonl'" in told["source"]


# --- what is told ----------------------------------------------------------------------------------------------


def test_a_difference_is_told_with_pack_file_line_and_token(copied: Callable[[str], Made]) -> None:
    folder, sources = copied("padded")
    dataset = read(folder)
    segment = find(dataset, 1)
    segment.ids[0] += 1
    written(folder, dataset)
    agree(folder)
    place = "train-00000-of-00001.parquet: pack 11: segment 0 (t.json:2)"
    told = f"{place}: token 0 of it has id {segment.ids[0]}; the source gives {segment.ids[0] - 1}"
    assert faults(compared(folder, sources)) == {"source": told}


def test_a_sample_finds_what_is_in_it(copied: Callable[[str], Made]) -> None:
    folder, sources = copied("padded")
    dataset = read(folder)
    for pack in dataset.packs:
        pack[0].ids[0] += 1
    written(folder, dataset)
    agree(folder)
    assert verify(folder).ok
    report = compared(folder, sources, sample=10)
    (check,) = (check for check in report.checks if check.name == "source")
    assert 0 < check.checked < 25
    assert 0 < check.faults <= check.checked
    again = compared(folder, sources, sample=10)
    assert again == report
    assert compared(folder, sources, sample=10, seed=1) != report


def test_an_incomplete_manifest_cannot_be_compared(copied: Callable[[str], Made]) -> None:
    from tests.dataset_builder import change_manifest

    folder, sources = copied("text")
    change_manifest(folder, lambda values: values["options"].pop("field"))
    (check,) = (check for check in compared(folder, sources).checks if check.name == "source")
    assert check.detail == "not checked: the manifest's options are not complete, see there"
