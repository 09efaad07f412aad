"""Packs to look at, made by hand, and datasets of the sample data and of hostile texts."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from packtool.contract import IGNORED, PADDING_DOC
from packtool.inspection import Inspection, Run, ShownPack, ShownSegment
from tests import runs

Token = tuple[str, bool]
"""What a token adds to the text, and whether it trains."""

HOSTILE = [
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1bP q \x1b\\",
    "</pre><script>alert(1)</script><img src=x onerror=alert(2)> & \"quoted\" 'too'",
    "right \u202eto left\u202c \u2066isolated\u2069 \u200f\u200e\u061c",
    "nul \x00 del \x7f csi \x9b31m nel \x85 shy \xad",
    "zero\u200bwidth\u200d\u2060\ufeff and \U000e0041tags, fillers "
    "\u034f\u115f\u1160\u17b4\u180b\u3164\uffa0, selectors \ufe0f\U000e0100, a blank \u2800",
    "line \u2028 and \u2029 separators\r\nreturn\rtab\tend",
    "a very long line " + "without an end " * 400,
    "unbroken" * 900,
    "👩‍👩‍👧 日本語のテキスト。" * 12,
    "e\u0301\u0301\u0301\u0301 שלום مرحبا",
    "\\x1b is text here, ]]> and -->",
]

CONTROLS = {
    *map(chr, range(32)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u2028\u2029\u200b\u200c\u200d\u200e\u200f\u061c\u2060\ufeff\xad",
}
CONTROLS |= {*map(chr, range(0x202A, 0x202F)), *map(chr, range(0x2066, 0x206A)), *map(chr, range(0xE0000, 0xE0200))}
CONTROLS |= {*"\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0", *map(chr, range(0xFE00, 0xFE10))}
"""What may never be written."""


def inspection(
    *segments: Sequence[Token], padding: int = 0, source: str = "a.jsonl", doc_id: int | None = None
) -> Inspection:
    """One pack of segments given token by token; token n of a segment has the id n + 7."""
    shown = []
    start = 0
    for number, tokens in enumerate([*segments, *([[("<pad>", False)] * padding] if padding else [])]):
        is_padding = number == len(segments)
        ids = np.arange(7, 7 + len(tokens), dtype=np.int32)
        trained = np.array([train for _, train in tokens])
        starts = [0, *(np.flatnonzero(trained[1:] != trained[:-1]) + 1).tolist()]
        pieces = tuple(piece for piece, _ in tokens)
        runs_ = tuple(
            Run(first, stop, bool(trained[first]), "".join(pieces[first:stop]))
            for first, stop in zip(starts, [*starts[1:], len(tokens)], strict=True)
        )
        shown.append(
            ShownSegment(
                number=number,
                source=None if is_padding else source,
                line=None if is_padding else number + 1,
                doc_id=PADDING_DOC if is_padding else number,
                doc_offset=0,
                start=start,
                is_padding=is_padding,
                input_ids=ids,
                labels=np.where(trained, ids, IGNORED).astype(np.int32),
                position_ids=np.arange(len(tokens), dtype=np.int32),
                texts=pieces,
                pieces=pieces,
                runs=runs_,
                faults=(),
            )
        )
        start += len(tokens)
    pack = ShownPack(3, "train-00000-of-00001.parquet", 3, max(2, start), tuple(shown))
    return Inspection("out", 9, pack.max_length, doc_id, (pack,))


def tokens() -> st.SearchStrategy[list[Token]]:
    """Tokens of a segment: words, blanks, new lines, wide and hostile characters, nothing at all, long ones."""
    piece = st.one_of(
        st.sampled_from(
            ["a", " word", "\n", "\n\n", "", "日本", "🙂", " ", "\x1b[1m", "\u202e", "x" * 300, "<b>", "\\xf0", "\t"]
        ),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
    )
    # Tokens that are a part of a character have no piece; the last token of a run always has one.
    run = st.tuples(st.lists(piece, max_size=25), piece.filter(bool), st.booleans())
    return st.lists(run, min_size=1, max_size=6).map(
        lambda made: [("<s>", False), *((piece, train) for pieces, last, train in made for piece in [*pieces, last])]
    )


def chat_dataset(folder: Path) -> Path:
    """Conversations of the sample data, padded."""
    root = Path(__file__).parent.parent.parent
    source = root / "sample_data" / "chat.jsonl"
    runs.run(source, folder, max_length=600, limit=12, pad=True, overlong="truncate_turns")
    return folder


def hostile_dataset(folder: Path) -> Path:
    """A pack of hostile texts, from a source with a hostile name."""
    records = [{"prompt": text, "completion": text} for text in HOSTILE]
    source = runs.write_jsonl(folder.parent / "<script>alert(3)<\u202escript>.jsonl", records)
    runs.run(source, folder, max_length=16_384, pad=True)
    return folder
