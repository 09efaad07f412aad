"""Draws docs/pictures/plan.svg: what ``packtool plan`` prints of the sample conversations."""

import io
from pathlib import Path
from unittest.mock import patch

from rich.console import Console
from show import SVG, THEME  # docs/pictures/show.py

from packtool import PlanConfig, plan, terminal

HERE = Path(__file__).parent
SAMPLES = HERE.parent.parent / "sample_data"


def draw() -> None:
    """Plan, print, draw."""
    options = {"sources": [str(SAMPLES / "chat.jsonl")], "tokenizer": str(SAMPLES / "tokenizer"), "workers": 1}
    comparison = plan(PlanConfig.checked({**options, "max_length": [1024, 2048, 4096]}))
    console = Console(
        record=True,
        file=io.StringIO(),
        width=terminal.WIDTH,
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    console.print("$ packtool plan chat.jsonl -t tokenizer -L 1024,2048,4096", markup=False)
    with patch.object(terminal, "console", lambda: console):
        terminal.print_comparison(comparison, "packtool pack chat.jsonl -o packed -s bfd -L 2048 -t tokenizer")
    console.print()
    svg = console.export_svg(title="", theme=THEME, code_format=SVG, unique_id="plan")
    (HERE / "plan.svg").write_text(svg)


if __name__ == "__main__":
    draw()
