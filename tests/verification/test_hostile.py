"""Datasets made to hurt whoever verifies them: the report says what is wrong, and nothing else is touched."""

import os
from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
import pytest

from packtool.verification import verify
from tests.dataset_builder import change_manifest, remake
from tests.verification.agreement import read, written
from tests.verification.bases import Made, faults

BIG = 2**63 - 1


def test_counts_beyond_all_measure_are_faults(copied: Callable[[str], Made]) -> None:
    folder, sources = copied("text")

    def change(values: dict[str, Any]) -> None:
        for name in ("records", "bad_records", "packs", "lower_bound_packs", "segments", "longest_segment", "groups"):
            values[name] = BIG
        for shard in values["shards"]:
            shard["packs"] = shard["tokens"] = BIG
        values["sources"][0].update(records=BIG, documents=BIG, tokens=BIG)
        values["segment_lengths"] = {"lengths": [1, BIG], "counts": [BIG, BIG]}
        values["options"]["group_tokens"] = BIG

    change_manifest(folder, change)
    found = faults(verify(folder, sources, workers=1))
    assert {"manifest", "conservation"} <= set(found)


def test_a_missing_shard_of_countless_packs_is_a_fault(copied: Callable[[str], Made]) -> None:
    folder, _ = copied("text")
    change_manifest(folder, lambda values: values["shards"][0].update(packs=BIG))
    (folder / "train-00000-of-00002.parquet").unlink()
    assert set(faults(verify(folder))) == {"manifest_files"}


def test_max_length_beyond_all_measure_is_a_fault(copied: Callable[[str], Made]) -> None:
    folder, _ = copied("text")
    change_manifest(folder, lambda values: values.update(max_length=2**31 - 1))
    change_manifest(folder, lambda values: values["options"].update(max_length=2**31 - 1))
    assert {"schema", "pieces"} <= set(faults(verify(folder)))


@pytest.mark.parametrize("name", ["tokenizer.json", "chat_template.jinja"])
def test_no_link_of_the_tokenizer_is_followed(copied: Callable[[str], Made], name: str) -> None:
    folder, _ = copied("text")
    path = folder / "tokenizer" / name
    elsewhere = path.rename(folder.parent / name)
    path.symlink_to(elsewhere)
    remake(folder)
    assert f"{name}: a link" in faults(verify(folder))["tokenizer"]


@pytest.mark.parametrize("name", ["README.md", "rejects.jsonl", "tokenizer/tokenizer.json"])
def test_a_pipe_is_not_waited_for(copied: Callable[[str], Made], name: str) -> None:
    folder, _ = copied("text")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert "not a regular file" in faults(verify(folder))["manifest_files"]


def test_documents_that_overlap_without_end_are_not_compared(copied: Callable[[str], Made]) -> None:
    folder, sources = copied("padded")
    dataset = read(folder)
    row = dataset.rejects[-1]
    dataset.rejects += [{**row, "offset": row["offset"] + n, "tokens": 2**31 - 1} for n in range(1, 2000)]
    written(folder, dataset)
    report = verify(folder, sources, workers=1)
    (check,) = (check for check in report.checks if check.name == "source")
    assert check.detail == "not checked: documents are not whole, see there"


def test_negative_numbers_everywhere_are_faults(copied: Callable[[str], Made]) -> None:
    folder, sources = copied("text")
    dataset = read(folder)
    for number, pack in enumerate(dataset.packs):
        pack[0].doc_id = -2 - number
        pack[0].offset = -(2**31)
    written(folder, dataset)
    assert {"documents", "conservation"} <= set(faults(verify(folder, sources, workers=1)))


def test_metadata_of_another_shape_is_a_fault(copied: Callable[[str], Made]) -> None:
    folder, _ = copied("text")
    path = folder / "train-00000-of-00002.parquet"
    with pq.ParquetFile(path) as file:
        table = file.read()
    told = {b"packtool.pack_tokens": b"[[1]]", b"packtool.pack_squares": b"{}", b"packtool.pack_segments": b"[1e999]"}
    pq.write_table(table.replace_schema_metadata(told), path)
    remake(folder)
    assert "packtool.pack_tokens" in faults(verify(folder))["conservation"]


@pytest.mark.parametrize("text", ["\x1b[31mred", "\u202eback", "<script>"])
def test_names_from_the_data_cannot_escape_from_a_report(
    copied: Callable[[str], Made], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from packtool import cli

    folder, _ = copied("text")
    dataset = read(folder)
    dataset.rejects[0]["source"] = text
    written(folder, dataset)
    assert cli._exit_code(["verify", str(folder)]) == 1
    shown = "".join(capsys.readouterr())
    assert "\x1b" not in shown
    assert "\u202e" not in shown
