"""Packs as one page of HTML that needs nothing else: no script, no font, no picture from anywhere.

Everything from the data is escaped text; the page's own policy forbids whatever else a browser might load or run.
"""

from collections.abc import Iterator, Sequence
from html import escape

from packtool.amounts import percent
from packtool.errors import printable
from packtool.inspection import Inspection, Run, ShownPack, ShownSegment

_OPEN_SEGMENTS = 12
"""The first segments of a pack are open, the others a click away."""
_STAIRS = 256
"""Tokens of a pack up to which its mask is drawn token by token."""

_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1f24; --soft: #6a737d; --line: #d8dee4;
  --train: #0b5d2a; --train-paper: #e3f6e8; --bar: #1a9c4a; --block: #2f6fb3; --block2: #b8860b; --fault: #b31d28 }
@media (prefers-color-scheme: dark) { :root { --paper: #12161b; --ink: #d7dde4; --soft: #848d97; --line: #2d333b;
  --train: #a4ecba; --train-paper: #10301c; --bar: #36b565; --block: #5fa2e8; --block2: #d9a93a; --fault: #ff7b72 } }
body { margin: 2rem auto; max-width: 68rem; padding: 0 1rem; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.4rem } h2 { font-size: 1.15rem; margin-top: 2.5rem; border-top: 2px solid var(--line);
  padding-top: 1rem }
p, figcaption { color: var(--soft) } figure { margin: 1rem 0 }
svg { width: min(100%, 24rem); height: auto; border: 1px solid var(--line); background: var(--paper) }
svg .a { fill: var(--block) } svg .b { fill: var(--block2) } svg .pad { fill: var(--soft) }
details { margin: 1rem 0; border-top: 1px solid var(--line) } summary { cursor: pointer; padding: .4rem 0 }
summary b { font-weight: 600 } summary span { color: var(--soft) }
.run { display: grid; grid-template-columns: 5rem 3.5rem 1fr; font: 13px/1.55 ui-monospace, monospace }
.run > i { font-style: normal; color: var(--soft); text-align: right; padding-right: .8rem }
.run > pre { margin: 0; font: inherit; white-space: pre-wrap; overflow-wrap: anywhere; unicode-bidi: isolate;
  padding-left: .7rem }
.mask > pre { color: var(--soft); border-left: 3px dotted var(--line) }
.train > pre { color: var(--train); background: var(--train-paper); border-left: 3px solid var(--bar) }
.train > i.what { color: var(--train); font-weight: 700 }
pre span:hover { outline: 1px solid var(--ink) } .fault { color: var(--fault); font-weight: 600 }
"""


def page(inspection: Inspection) -> str:
    """All the packs, with masks, and every token's id, label and position where the pointer rests on it."""
    packs = "its only pack" if inspection.packs == 1 else f"packs 0 to {inspection.packs - 1:,}"
    return "".join(
        [
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n",
            '<meta name="viewport" content="width=device-width">\n',
            f"<title>{_text(inspection.path)}</title>\n<style>{_STYLE}</style></head><body>\n",
            f"<h1>{_text(inspection.path)}</h1>\n<p>{packs}, of at most {inspection.max_length:,} tokens each. ",
            "Check all of it with <code>packtool verify</code>.</p>\n",
            *(f'<p class="fault">WRONG: {_text(fault)}</p>\n' for fault in inspection.faults),
            *_legend(),
            *(part for pack in inspection.shown for part in _pack(pack, inspection.doc_id)),
            "</body></html>\n",
        ]
    )


def _text(value: str) -> str:
    return escape(printable(value))


def _legend() -> Iterator[str]:
    yield '<div class="run train"><i>position</i><i class="what">TRAIN</i><pre>carries loss: the model learns to '
    yield 'write it</pre></div>\n<div class="run mask"><i></i><i class="what">mask</i><pre>is only read (label -100); '
    yield "so is always a segment's first token, as nothing before it in its segment could predict it</pre></div>\n"
    yield "<p>Positions restart at 0 in every segment. Point at a token to see its id, label and position.</p>\n"


def _pack(pack: ShownPack, doc_id: int | None) -> Iterator[str]:
    padding = f", then {pack.padding:,} of padding" if pack.padding else ""
    share = percent(pack.trained_tokens / pack.tokens if pack.tokens else 0)
    yield f'<h2 id="pack-{pack.number}">pack {pack.number:,}</h2>\n'
    yield f"<p>row {pack.row:,} of {_text(pack.shard)}: {pack.tokens:,} tokens ({percent(pack.fill)}){padding}; "
    yield f"{pack.trained_tokens:,} tokens train ({share})</p>\n"
    yield from _mask(pack.segments)
    for segment in pack.segments:
        is_open = segment.number < _OPEN_SEGMENTS if doc_id is None else segment.doc_id == doc_id
        yield from _segment(segment, is_open and not segment.is_padding)


def _place(segment: ShownSegment) -> str:
    return "padding" if segment.is_padding else f"{_text(segment.source or 'no source')}:{segment.line or '?'}"


def _segment(segment: ShownSegment, is_open: bool) -> Iterator[str]:
    piece = f", piece from token {segment.doc_offset:,} on" if segment.doc_offset else ""
    document = "" if segment.is_padding else f"document {segment.doc_id}{piece}, "
    first, last = segment.position_ids[0], segment.position_ids[-1]
    yield f"<details{' open' if is_open else ''}><summary><b>segment {segment.number:,}: {_place(segment)}</b> "
    yield f"<span>{document}{segment.length:,} tokens, positions {first}..{last}, "
    yield f"{segment.trained_tokens:,} train</span></summary>\n"
    for fault in segment.faults:
        yield f'<p class="fault">WRONG: {_text(fault)}</p>\n'
    for run in segment.runs:
        yield from _run(segment, run)
    yield "</details>\n"


def _run(segment: ShownSegment, run: Run) -> Iterator[str]:
    kind, name = ("train", "TRAIN") if run.trained else ("mask", "mask")
    position = segment.position_ids[run.start]
    yield f'<div class="run {kind}"><i>{position}</i><i class="what">{name}</i><pre dir="auto">'
    for index in range(run.start, run.stop):
        # A part of a character is shown with the token that completes it, and said in each token's title.
        shown = "\u21b5\n".join(_text(line) for line in segment.pieces[index].split("\n"))
        title = (
            f"'{printable(segment.texts[index])}' id {segment.input_ids[index]}, label {segment.labels[index]}, "
            f"position {segment.position_ids[index]}"
        )
        yield f'<span title="{escape(title)}">{shown}</span>'
    yield "</pre></div>\n"


def _mask(segments: Sequence[ShownSegment]) -> Iterator[str]:
    tokens = sum(segment.length for segment in segments)
    yield f'<figure><svg viewBox="0 0 {tokens} {tokens}" role="img" aria-label="attention mask">'
    for segment in segments:
        kind = "pad" if segment.is_padding else "ab"[segment.number % 2]
        yield f'<polygon class="{kind}" points="{_outline(segment.start, segment.length, tokens <= _STAIRS)}">'
        yield f"<title>segment {segment.number}: {_place(segment)}, {segment.length:,} tokens</title></polygon>"
    yield "</svg><figcaption>Who may see whom: each row is a token that looks, each column one that it may see; "
    yield "never one of another segment.</figcaption></figure>\n"


def _outline(start: int, length: int, stairs: bool) -> str:
    """The corners of a segment's triangle under the diagonal; token by token with ``stairs``."""
    end = start + length
    corners = [(start, end), (start, start)]
    if stairs:
        for at in range(start, end):
            corners += [(at + 1, at), (at + 1, at + 1)]
    else:
        corners.append((end, end))
    return " ".join(f"{x},{y}" for x, y in corners)
