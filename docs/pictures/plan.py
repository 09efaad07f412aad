"""Draws docs/pictures/plan.svg: what ``packtool plan`` shows of the sample conversations."""

import io
import re
from pathlib import Path
from unittest.mock import patch

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME

from packtool import PlanConfig, plan, terminal

HERE = Path(__file__).parent
SAMPLES = HERE.parent.parent / "sample_data"


def draw() -> None:
    """Plan, print into a picture."""
    options = {"sources": [str(SAMPLES / "chat.jsonl")], "tokenizer": str(SAMPLES / "tokenizer"), "workers": 1}
    comparison = plan(PlanConfig.checked({**options, "max_length": [1024, 2048, 4096]}))
    shown = Console(record=True, width=terminal.WIDTH, file=io.StringIO(), force_terminal=True, highlight=False)
    with patch.object(terminal, "console", lambda: shown):
        terminal.print_comparison(comparison)
        shown.print()
    without_web_fonts = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.S)
    picture = shown.export_svg(
        title="packtool plan chat.jsonl -t tokenizer -L 1024,2048,4096",
        theme=DEFAULT_TERMINAL_THEME,
        code_format=without_web_fonts.replace("Fira Code", "ui-monospace, Menlo, Consolas, DejaVu Sans Mono"),
        unique_id="plan",
    )
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", "").replace("https://www.textualize.io", "")
    (HERE / "plan.svg").write_text(picture, encoding="utf-8")


if __name__ == "__main__":
    draw()
