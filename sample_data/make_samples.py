"""Make the sample data again, byte for byte: `python sample_data/make_samples.py [FOLDER]`.

Takes nothing but the fragments in `making/` and a seed; writes text.jsonl, instructions.jsonl, chat.jsonl and
tokenizer/ into FOLDER (by default the folder of this file). Needs `tokenizers`.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from making.conversations import chat_records
from making.documents import text_records
from making.grammar import Dice
from making.instructions import instruction_records
from making.tokenizer import write_tokenizer

SEED = "packtool samples 1"


def main(folder: Path) -> None:
    files: dict[str, list[dict[str, Any]]] = {
        "text.jsonl": list(text_records(Dice(f"{SEED} text"))),
        "instructions.jsonl": list(instruction_records(Dice(f"{SEED} instructions"))),
        "chat.jsonl": chat_records(Dice(f"{SEED} chat")),
    }
    folder.mkdir(exist_ok=True)
    for name, records in files.items():
        lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
        (folder / name).write_bytes("".join(lines).encode("utf-8"))
    write_tokenizer(strings(list(files.values())), folder / "tokenizer")


def strings(value: Any) -> Iterator[str]:
    """Every string value inside lists and dictionaries, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from strings(inner)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
