"""Draws docs/pictures/show*.svg: what ``packtool show`` prints of the sample chats, packed as ``make demo`` does.

The pictures are drawn with the fonts of whoever looks at them; none is fetched.
"""

import io
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from packtool import PackConfig, pack, show
from packtool.views import lines
from packtool.views.page import Page

HERE = Path(__file__).parent
SAMPLES = HERE.parent.parent / "sample_data"
WIDTH = 80
THEME = TerminalTheme(
    (22, 27, 34),
    (208, 215, 222),
    [(22, 27, 34), (255, 123, 114), (63, 185, 80), (210, 153, 34), (88, 166, 255), (188, 140, 255), (57, 197, 207),
     (177, 186, 196)],
    [(110, 118, 129), (255, 161, 152), (86, 211, 100), (227, 179, 65), (121, 192, 255), (210, 168, 255),
     (86, 212, 221), (255, 255, 255)],
)  # fmt: skip
SVG = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" class="rich-terminal">
<style>.{unique_id}-matrix {{ font: {char_height}px/{line_height}px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", \
monospace; font-variant-east-asian: full-width }} {styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}" height="{terminal_height}"/></clipPath>
{lines}</defs>{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""


def draw() -> None:
    """Pack, look, draw."""
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "chat"
        options = {"sources": [str(SAMPLES / "chat.jsonl")], "output": output, "max_length": 2048, "workers": 1}
        tokenizer = str(SAMPLES / "tokenizer")
        pack(PackConfig.checked({**options, "tokenizer": tokenizer, "overlong": "truncate_turns"}))
        found = replace(show(output), path="demo/chat")
    page = Page(WIDTH)
    save("show", "packtool show demo/chat", islice(lines(found, page, tokens=False, mask=False), 58))
    save("show-tokens", "packtool show demo/chat --tokens", islice(lines(found, page, tokens=True, mask=False), 36))
    save("show-mask", "packtool show demo/chat --mask", lines(found, page, tokens=False, mask=True))


def save(name: str, command: str, shown: Iterable[Text]) -> None:
    """Write a command and what it prints as docs/pictures/NAME.svg."""
    console = Console(
        record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(f"$ {command}", markup=False)
    for line in shown:
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title="", theme=THEME, code_format=SVG, unique_id=name)
    (HERE / f"{name}.svg").write_text(svg)


if __name__ == "__main__":
    draw()
