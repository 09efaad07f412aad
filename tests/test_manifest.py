"""The manifest: what contradicts itself or cannot be is refused by every reader."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from packtool.errors import BadData
from packtool.manifest import read_manifest
from tests.dataset_builder import VOCABULARY, change_manifest, make_dataset, sample

Change = Callable[[dict[str, Any]], None]


def source(index: int, **values: Any) -> Change:
    return lambda manifest: manifest["sources"][index].update(values)


def tokenizer(**values: Any) -> Change:
    return lambda manifest: manifest["tokenizer"].update(values)


def options(**values: Any) -> Change:
    return lambda manifest: manifest.update(options=values)


def top(**values: Any) -> Change:
    return lambda manifest: manifest.update(values)


REFUSED: list[tuple[Change, str]] = [
    (source(0, rows=10**18), r"sources.0.rows: .*less than or equal to"),
    (source(2, rows=2**53), "rows, more than there are doc ids"),
    (source(0, rows=39), "'b.jsonl' begins at 40; the rows before it end at 39"),
    (source(0, first=1), "'a.jsonl' begins at 1; the rows before it end at 0"),
    (source(0, name=""), "is not the name of a source"),
    (source(0, name="/etc/passwd"), "is not the name of a source"),
    (source(0, name="a/../../b.jsonl"), "is not the name of a source"),
    (source(0, name="a\x1b[31m.jsonl"), "is not the name of a source"),
    (source(0, name="a\x9b31m.jsonl"), "is not the name of a source"),
    (tokenizer(eos_id=VOCABULARY), "special token 500 is not in the vocabulary of 500"),
    (tokenizer(bos_ids=[1, VOCABULARY]), "special token 500 is not in the vocabulary of 500"),
    (tokenizer(pad_id=VOCABULARY), "special token 500 is not in the vocabulary of 500"),
    (top(strategy="worst_fit"), "strategy: .*'worst_fit' is not a strategy"),
    (top(format="auto"), "format: .*'auto' is not a format of records"),
    (options(max_length=17), "options.max_length is 17, but the dataset's is 16"),
    (options(max_length=16.0), "options.max_length is 16.0, but the dataset's is 16"),
    (options(strategy="wrapped"), "options.strategy is 'wrapped', but the dataset's is 'bfd_split'"),
    (options(format="messages"), "options.format is 'messages', but the dataset's is 'prompt_completion'"),
    (options(pad=True), "options.pad is True, but the dataset's is False"),
]


@pytest.mark.parametrize(("change", "words"), REFUSED)
def test_a_manifest_that_cannot_be_is_refused(tmp_path: Path, change: Change, words: str) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    change_manifest(folder, change)
    with pytest.raises(BadData, match=words) as refused:
        read_manifest(folder)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "change",
    [
        source(0, name="..a/b...jsonl"),
        source(0, name="hf:me/data@main:default:train/x.arrow"),
        source(2, rows=2**53 - 40),
        tokenizer(eos_id=VOCABULARY - 1, bos_ids=[0, VOCABULARY - 1]),
        options(max_length=16, strategy="bfd_split", format="prompt_completion", pad=False, seed=0),
    ],
)
def test_what_agrees_is_read(tmp_path: Path, change: Change) -> None:
    folder = tmp_path / "ds"
    make_dataset(folder, sample())
    change_manifest(folder, change)
    read_manifest(folder)
