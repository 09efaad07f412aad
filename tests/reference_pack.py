"""What ``packtool pack --no-shuffle`` makes, for people to read: documents to the six columns in plain Python, slowly.

Uses ``tokenizers`` itself and the slow strategies of ``packing.reference``; nothing of packtool.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from tests.packing import reference

IGNORED = -100
_64 = 2**64


@dataclass
class Document:
    """A record that became tokens."""

    doc_id: int
    ids: list[int]
    trained: list[bool]


@dataclass
class Expected:
    """A dataset, as it must be."""

    rows: list[dict[str, list[int]]] = field(default_factory=list)
    rejects: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    """(doc id, offset, tokens, checksum, reason)"""


def documents_of_tokens(records: list[dict[str, Any]]) -> list[Document]:
    """Records of ids and labels; those without tokens are none."""
    found = []
    for doc_id, record in enumerate(records):
        ids = record["input_ids"]
        labels = record.get("labels", ids)
        if ids:
            found.append(Document(doc_id, ids, [label != IGNORED for label in labels]))
    return found


def documents_of_text(records: list[dict[str, str]], tokenizer: Path, eos: int) -> list[Document]:
    """Records of ``text``, or of ``prompt`` and ``completion``; blank ones are none."""
    loaded = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    loaded.post_processor = processors.ByteLevel(trim_offsets=False)
    found = []
    for doc_id, record in enumerate(records):
        prompt, text = record.get("prompt", ""), record.get("completion", record.get("text", ""))
        if not text.strip():
            continue
        encoding = loaded.encode(prompt + text, add_special_tokens=False)
        ids, trained = list(encoding.ids), [stop > len(prompt) and stop > start for start, stop in encoding.offsets]
        if ids[-1] != eos:
            ids, trained = [*ids, eos], [*trained, True]
        found.append(Document(doc_id, ids, trained))
    return found


def pack(
    documents: list[Document],
    *,
    strategy: str,
    max_length: int,
    overlong: str,
    max_segments: int | None = None,
    pad_id: int | None = None,
    group_tokens: int = 10**9,
) -> Expected:
    """The packs, and what is in none of them."""
    made = Expected()
    masks = [document.trained for document in documents]
    if strategy == "wrapped":
        pieces = [(doc, 0, len(mask), sum(mask[1:])) for doc, mask in enumerate(masks) if any(mask[1:])]
        cuts = [(doc, 0, len(mask), "nothing_to_train") for doc, mask in enumerate(masks) if not any(mask[1:])]
    else:
        pieces, cuts = reference.pieces(masks, max_length, overlong)
    lay = {
        "bfd": reference.best_fit_decreasing,
        "bfd_split": reference.best_fit_decreasing,
        "wrapped": reference.wrapped,
        "in_order": reference.in_order,
    }[strategy]
    stream = strategy in ("wrapped", "in_order")
    for group in [pieces] if stream else _groups(pieces, documents, group_tokens):
        for pack in lay([length for _, _, length, _ in group], max_length, max_segments):
            segments = [(group[piece][0], group[piece][1] + offset, length) for piece, offset, length in pack]
            if any(any(masks[doc][start + 1 : start + length]) for doc, start, length in segments):
                made.rows.append(_row(documents, segments, max_length, pad_id))
            else:
                cuts += [(doc, start, length, "nothing_to_train") for doc, start, length in segments]
    for doc, start, length, reason in cuts:
        document = documents[doc]
        h = checksum(document.ids[start : start + length], start)
        made.rejects.append((document.doc_id, start, length, h, reason))
    made.rejects.sort()
    return made


def _groups(
    pieces: list[tuple[int, int, int, int]], documents: list[Document], group_tokens: int
) -> list[list[tuple[int, int, int, int]]]:
    """Stretches of documents with about equally many tokens: a document is in the one where its first token falls."""
    tokens = sum(len(document.ids) for document in documents)
    count = max(1, -(-tokens // group_tokens))
    groups: list[list[tuple[int, int, int, int]]] = [[] for _ in range(count)]
    before = {}
    so_far = 0
    for piece in pieces:
        before.setdefault(piece[0], so_far)
        so_far += piece[2]
        groups[before[piece[0]] * count // tokens].append(piece)
    return groups


def _row(
    documents: list[Document], segments: list[tuple[int, int, int]], max_length: int, pad_id: int | None
) -> dict[str, list[int]]:
    row: dict[str, list[int]] = {
        name: [] for name in ("input_ids", "labels", "position_ids", "seq_lengths", "doc_ids", "doc_offsets")
    }
    for doc, start, length in segments:
        document = documents[doc]
        for position in range(length):
            id = document.ids[start + position]
            row["input_ids"].append(id)
            row["labels"].append(id if position > 0 and document.trained[start + position] else IGNORED)
            row["position_ids"].append(position)
        row["seq_lengths"].append(length)
        row["doc_ids"].append(document.doc_id)
        row["doc_offsets"].append(start)
    missing = max_length - len(row["input_ids"])
    if pad_id is not None and missing:
        row["input_ids"] += [pad_id] * missing
        row["labels"] += [IGNORED] * missing
        row["position_ids"] += range(missing)
        row["seq_lengths"].append(missing)
        row["doc_ids"].append(-1)
        row["doc_offsets"].append(0)
    return row


def checksum(ids: list[int], offset: int = 0) -> int:
    """h of a stretch: the sum of a mix of every token and its index in the document."""
    return sum(mix(index << 32 | id) for index, id in enumerate(ids, start=offset)) % _64


def source_checksum(documents: list[Document]) -> int:
    """What the manifest keeps of a source that has these documents."""
    return sum((mix(document.doc_id) | 1) * checksum(document.ids) for document in documents) % _64


def mix(x: int) -> int:
    """SplitMix64's output for the seed x, as its authors published it."""
    z = (x + 0x9E3779B97F4A7C15) % _64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % _64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % _64
    return z ^ (z >> 31)
