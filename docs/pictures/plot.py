"""Draws docs/pictures/plot.svg: the sample data, packed as ``make demo`` does."""

import tempfile
from dataclasses import replace
from pathlib import Path

from packtool import PackConfig, pack, stats
from packtool.plotting import save_plot

HERE = Path(__file__).parent
SAMPLES = HERE.parent.parent / "sample_data"
MORE = {"text": {}, "instructions": {}, "chat": {"overlong": "truncate_turns"}}


def draw() -> None:
    """Pack, measure, draw."""
    datasets = []
    with tempfile.TemporaryDirectory() as folder:
        for name, more in MORE.items():
            output = Path(folder) / name
            options = {"sources": [str(SAMPLES / f"{name}.jsonl")], "output": output, "max_length": 2048, **more}
            pack(PackConfig.checked({**options, "tokenizer": str(SAMPLES / "tokenizer"), "workers": 1}))
            datasets.append(replace(stats(output), path=f"demo/{name}"))
    save_plot(datasets, HERE / "plot.svg")


if __name__ == "__main__":
    draw()
