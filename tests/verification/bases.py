"""A few tiny datasets, packed by packtool itself, that corruptions are tried on."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packtool.verification import VerifyReport
from tests import runs


@dataclass(frozen=True)
class Base:
    """How a dataset is made."""

    write: Callable[[Path], list[Path]]
    """Writes the sources into a folder."""
    options: dict[str, Any]

    def make(self, folder: Path) -> tuple[Path, list[Path]]:
        """Pack it below ``folder``: the dataset and its sources."""
        folder.mkdir()
        sources = self.write(folder)
        runs.run(sources, folder / "out", **self.options)
        return folder / "out", sources


def _texts(folder: Path) -> list[Path]:
    """Two files of texts from short to split, with a blank line and a text that is empty."""
    words = ["and so on ", "one more ", "the end ", "a text ", "of no use "]
    texts = [words[n % 5] * (1 + n * 7 % 30) + str(n) for n in range(26)]
    lines: list[Any] = [{"text": text} for text in texts]
    lines[11] = {"text": ""}
    lines[4:4] = [b""]
    return [runs.write_jsonl(folder / "a.jsonl", lines[:15]), runs.write_jsonl(folder / "b.jsonl", lines[15:])]


def _tokens(folder: Path) -> list[Path]:
    """An array of records of tokens with labels: some too long, some without a label, and a bad one."""
    records: list[Any] = []
    for n in range(30):
        ids = [1 + (n * 31 + i * 7) % 4000 for i in range(2 + n * 11 % 40)]
        labels = [id if (i + n) % 5 not in (1, 2) and i > 1 else -100 for i, id in enumerate(ids)]
        records.append({"input_ids": ids, "labels": labels})
    records[3] = {"input_ids": [1, 2, "three"], "labels": [1, 2, 3]}
    records[8] = {"input_ids": [5, 6, 7, 8], "labels": [-100] * 4}
    (folder / "t.json").write_text(json.dumps(records))
    return [folder / "t.json"]


def _stream(folder: Path) -> list[Path]:
    """Records of tokens with long stretches that do not train, so that packs of a stream are left out."""
    records = []
    for n in range(14):
        ids = [1 + (n * 31 + i * 7) % 4000 for i in range(3 + n * 19 % 90)]
        records.append({"input_ids": ids, "labels": [id if i % 60 < 12 else -100 for i, id in enumerate(ids)]})
    return [runs.write_jsonl(folder / "s.jsonl", records)]


def _chats(folder: Path) -> list[Path]:
    """Conversations of two to six turns."""
    conversations = []
    for n in range(16):
        turns = []
        for turn in range(1 + n % 3):
            turns.append({"role": "user", "content": f"Question {n}.{turn}? " * (1 + n % 4)})
            turns.append({"role": "assistant", "content": f"Answer {turn}. " * (1 + n % 5)})
        conversations.append({"messages": turns})
    return [runs.write_jsonl(folder / "c.jsonl", conversations)]


Made = tuple[Path, list[Path]]
"""A dataset and its sources."""


def faults(report: VerifyReport) -> dict[str, str]:
    """What each failed check says."""
    return {check.name: check.detail for check in report.checks if check.faults}


BASES = {
    "text": Base(_texts, {"max_length": 24, "strategy": "bfd_split", "shards": 2}),
    "padded": Base(
        _tokens,
        {"max_length": 24, "strategy": "bfd", "overlong": "truncate", "pad": True, "on_bad_record": "skip"},
    ),
    "stream": Base(_stream, {"max_length": 24, "strategy": "wrapped", "shuffle": False, "shards": 2}),
    "chat": Base(_chats, {"max_length": 64, "strategy": "bfd", "overlong": "truncate_turns"}),
}
