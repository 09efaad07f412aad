"""Makes the pictures of ``packtool show``: ``python docs/pictures/show.py`` after ``make demo``.

What stands in a picture is what the command prints; the fonts of the viewer draw it, none is fetched.
"""

import io
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from packtool.inspection import show
from packtool.views import lines
from packtool.views.page import Page

HERE = Path(__file__).parent
DATASET = Path("demo/chat")
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


def picture(name: str, command: str, most: int, **views: bool) -> None:
    """Write the first ``most`` lines that ``command`` prints as docs/pictures/NAME.svg."""
    console = Console(
        record=True, file=io.StringIO(), width=WIDTH, force_terminal=True, color_system="truecolor", highlight=False
    )
    console.print(f"$ {command}", markup=False)
    shown = show(DATASET, pack=views.pop("pack", 0))
    for number, line in enumerate(
        lines(shown, Page(WIDTH), tokens=views.get("tokens", False), mask=views.get("mask", False))
    ):
        if number == most:
            break
        console.print(line, no_wrap=True, overflow="ignore", crop=False)
    svg = console.export_svg(title="", theme=THEME, code_format=SVG, unique_id=name)
    (HERE / f"{name}.svg").write_text(svg)


if __name__ == "__main__":
    picture("show", "packtool show demo/chat", 60)
    picture("show-mask", "packtool show demo/chat --mask", 60, mask=True)
