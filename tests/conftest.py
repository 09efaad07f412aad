"""What all tests share: hypothesis profiles, and the sample data that stands in the repository."""

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SLOW = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("quick", max_examples=60, deadline=None, suppress_health_check=_SLOW)
settings.register_profile("soak", max_examples=2_000, deadline=None, suppress_health_check=_SLOW)
settings.load_profile("quick")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So it is in a job that a script put in the background, and programs that tests start and stop would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="session")
def sample_data() -> Path:
    """The folder of sample data."""
    return ROOT / "sample_data"


@pytest.fixture(scope="session")
def sample_tokenizer(sample_data: Path) -> Path:
    """The folder of the small byte-level BPE tokenizer."""
    return sample_data / "tokenizer"
