"""Datasets that the tests of the loader share: many small row groups over several shards."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import runs

collect_ignore_glob = ["test_*.py"] if find_spec("torch") is None else []


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some hundred packs of up to 32 tokens in row groups of 4 and in five shards; prompts do not train."""
    folder = tmp_path_factory.mktemp("packed")
    records = []
    for n in range(330):
        ids = [5 + (n * 131 + i * 17) % 250 for i in range(2 + n * n % 23)]
        records.append({"input_ids": ids, "labels": [-100 if i < len(ids) // 3 else id for i, id in enumerate(ids)]})
    source = runs.write_jsonl(folder / "a.jsonl", records)
    with pytest.MonkeyPatch.context() as patch:
        runs.small_row_groups(patch, 128)
        runs.run(source, folder / "out", max_length=32, shards=5, strategy="bfd")
    return folder / "out"


@pytest.fixture(scope="session")
def pack_numbers(packed: Path) -> dict[tuple[int, ...], int]:
    """The number of the pack that begins with these documents."""
    return {tuple(row["doc_ids"]): number for number, row in enumerate(runs.rows(packed))}


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As launched by hand, whatever launched the tests."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Models are tiny, and tests run side by side: threads would only wait for each other."""
    import torch

    torch.set_num_threads(1)
