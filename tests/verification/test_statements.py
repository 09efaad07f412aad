"""What a manifest, a card or a folder states is held against the packs, one edited statement at a time."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packtool.verification import verify
from tests.dataset_builder import change_manifest, remake
from tests.verification.bases import Made, faults

Values = dict[str, Any]


def to(path: str, value: Any, *more: str) -> Callable[[Values], None]:
    """Set the field at a dotted path, and at more of them."""

    def change(values: Values) -> None:
        for each in (path, *more):
            place: Any = values
            *steps, last = (int(step) if step.isdigit() else step for step in each.split("."))
            for step in steps:
                place = place[step]
            place[last] = value

    change.__name__ = f"{path}={value}"
    return change


def without(option: str) -> Callable[[Values], None]:
    """Take an option away."""

    def change(values: Values) -> None:
        del values["options"][option]

    change.__name__ = f"no {option}"
    return change


EDITS: list[tuple[str, str, Callable[[Values], None]]] = [
    ("text", "packing", to("options.seed", 1)),
    ("text", "packing", to("options.shuffle", False)),
    ("text", "packing", to("options.max_segments", 1)),
    ("text", "packing", to("options.group_tokens", 200)),
    ("text", "packing", to("groups", 2)),
    ("text", "pieces", to("options.max_length", 32, "max_length")),
    ("text", "sums", to("options.max_length", 20, "max_length")),
    ("text", "sums", to("options.pad", True, "padded")),
    ("text", "tokenizer", to("tokenizer.eos_id", 7)),
    ("text", "text_ends", to("tokenizer.eos_id", 7)),
    ("text", "text_ends", to("tokenizer.bos_ids", [7])),
    ("text", "tokenizer", to("tokenizer.vocabulary_size", 500_000)),
    ("text", "tokenizer", to("tokenizer.digest", "1" * 64)),
    ("text", "tokenizer", to("tokenizer.eos", "and")),
    ("text", "conservation", to("lower_bound_packs", 44)),
    ("text", "manifest", to("options.strategy", "bfd", "strategy")),
    ("text", "manifest", to("options.seed", True)),
    ("text", "manifest", to("options.seed", -1)),
    ("text", "manifest", to("options.overlong", "drop")),
    ("text", "manifest", to("options.field", ["text"])),
    ("text", "manifest", to("options.limit", 5)),
    ("text", "manifest", to("limited", True)),
    ("text", "manifest", to("groups", 0)),
    ("text", "manifest", to("template_digest", "1" * 64)),
    ("text", "manifest", to("versions.packtool", "0.0.1")),
    ("text", "manifest", to("sources.0.kind", "leaves")),
    ("text", "manifest", to("sources.0.kind", "parquet")),
    ("text", "manifest", to("sources.0.compression", "none of them")),
    ("text", "manifest", to("sources.0.compression", "gzip")),
    ("text", "manifest", to("sources.0.documents", 16)),
    ("text", "manifest", to("options.shards", 5)),
    ("text", "manifest", to("options.shard_tokens", 100)),
    ("text", "manifest", to("options.more", None)),
    *(("text", "manifest", without(option)) for option in ("overlong", "shuffle", "seed", "max_segments", "field")),
    ("padded", "padding", to("options.pad", False, "padded")),
    ("padded", "padding", to("tokenizer.pad_id", 5)),
    ("padded", "pieces", to("options.overlong", "drop")),
    ("padded", "pieces", to("options.overlong", "error")),
    ("padded", "training", to("options.field", {"input_ids": "input_ids"})),
    ("padded", "training", to("options.format", "text", "format")),
    ("stream", "packing", to("options.max_segments", 2)),
    ("stream", "training", to("options.strategy", "in_order", "strategy")),
    ("chat", "pieces", to("options.overlong", "truncate")),
    ("chat", "manifest", to("template_digest", None)),
    ("chat", "manifest", without("train_on")),
]


@pytest.mark.parametrize(("base", "check", "edit"), EDITS, ids=lambda value: getattr(value, "__name__", value))
def test_an_edited_statement_is_found(
    copied: Callable[[str], Made], base: str, check: str, edit: Callable[[Values], None]
) -> None:
    folder, _ = copied(base)
    change_manifest(folder, edit)
    assert check in faults(verify(folder))


def test_a_plan_that_the_options_do_not_tell_of_is_not_called_sound(copied: Callable[[str], Made]) -> None:
    folder, sources = copied("text")

    def of_another_version(values: Values) -> None:
        values["packtool_version"] = values["versions"]["packtool"] = "0.0.9"

    change_manifest(folder, of_another_version)
    assert verify(folder).ok, "another version may have made it"
    change_manifest(folder, without("seed"))
    for source in (None, sources):
        report = verify(folder, source, workers=1)
        assert faults(report) == {"manifest": "manifest.json: options.seed is missing"}
        unmade = {check.name for check in report.checks if not check.ok and not check.faults}
        assert unmade == {"pieces", "packing", *(["source"] if source else [])}


# --- the card and the folder ---------------------------------------------------------------------------------


def in_card(old: str, new: str) -> Callable[[Path], None]:
    """Replace a part of the card."""

    def change(folder: Path) -> None:
        text = (folder / "README.md").read_text()
        assert old in text
        (folder / "README.md").write_text(text.replace(old, new))

    return change


CARD = [
    (in_card("    - train-00001-of-00002.parquet\n", ""), "README.md:8: '---'; expected '    - train-00001"),
    (in_card("00000-of", "00001-of"), "README.md:7: '    - train-00001-of-00002.parquet'"),
    (in_card("split: train\n", "split: test\n"), "README.md:5: '  - split: test'; expected '  - split: train'"),
    (in_card("parquet\n---", "parquet\n    - more.parquet\n---"), "README.md:9: '    - more.parquet'; expected '---'"),
    (in_card("---\nconfigs", "configs"), "README.md:1: 'configs:'; expected '---'"),
    (lambda folder: (folder / "README.md").write_bytes(b"\xff\xfe"), "README.md:1: "),
    (lambda folder: (folder / "README.md").write_bytes(b""), "README.md:1: ''; expected '---'"),
]


@pytest.mark.parametrize(("change", "detail"), CARD)
def test_a_card_that_does_not_list_the_shards_is_found(
    copied: Callable[[str], Made], change: Callable[[Path], None], detail: str
) -> None:
    folder, _ = copied("text")
    change(folder)
    remake(folder)
    found = faults(verify(folder))
    assert set(found) == {"card"}
    assert detail in found["card"]


def test_the_rest_of_a_card_may_be_written_anew(copied: Callable[[str], Made]) -> None:
    folder, _ = copied("text")
    in_card("# Packed dataset", "# Our dataset")(folder)
    remake(folder)
    assert verify(folder).ok


@pytest.mark.parametrize(
    "name", ["train-00002-of-00003.parquet", "notes.txt", "tokenizer/vocab.json", "data/x.parquet", "rejects.json"]
)
def test_a_stray_file_is_found(copied: Callable[[str], Made], name: str) -> None:
    folder, _ = copied("text")
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("{}")
    found = faults(verify(folder))
    assert set(found) == {"stray_files"}
    assert str(folder / name.removesuffix("/x.parquet")) in found["stray_files"]


@pytest.mark.parametrize("name", ["hello.txt", "t.py", "dataset_infos.json", "tokenizer/vocab.json"])
def test_a_stray_file_is_found_though_the_manifest_lists_it(copied: Callable[[str], Made], name: str) -> None:
    folder, _ = copied("text")
    (folder / name).write_text("{}")
    change_manifest(folder, lambda values: values["files"].append({"name": name, "bytes": 2, "sha256": "0" * 64}))
    remake(folder)
    found = faults(verify(folder))
    told = f"{folder / name}: no file of a dataset, though listed in the manifest; move it elsewhere"
    assert found == {"stray_files": told}


def test_hidden_files_are_no_part_of_a_dataset(copied: Callable[[str], Made]) -> None:
    folder, _ = copied("text")
    (folder / ".gitattributes").write_text("*.parquet filter=lfs\n")
    (folder / ".cache").mkdir()
    assert verify(folder).ok


def test_a_statement_about_the_source_is_found_with_the_source_alone(copied: Callable[[str], Made]) -> None:
    folder, sources = copied("text")
    change_manifest(folder, to("sources.0.digest", "1" * 64))
    assert verify(folder).ok
    found = faults(verify(folder, sources, workers=1))
    assert found == {"source": "source 'a.jsonl': is not the file that was packed, or has changed since"}
