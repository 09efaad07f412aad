"""The package: what it loads when, and what it says where torch is missing."""

import subprocess
import sys

import pytest

import packtool.torch
from packtool.errors import PacktoolError


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_importing_the_package_alone_does_not_load_torch() -> None:
    assert python("import sys, packtool.torch; print('torch' in sys.modules)") == "False"


@pytest.mark.parametrize("statement", ["import packtool.torch", "from packtool.torch.dataset import PackedDataset"])
def test_without_torch_the_error_says_what_to_install(statement: str) -> None:
    code = f"""
import sys
sys.modules["torch"] = None
from packtool.errors import PacktoolError
try:
    {statement}
except PacktoolError as error:
    print(isinstance(error, ImportError), error)
"""
    assert (
        python(code)
        == "True packtool.torch needs torch: pip install 'packtool[torch]' (from a clone: pip install '.[torch]')"
    )


def test_every_public_name_is_there_and_no_other() -> None:
    for name in packtool.torch.__all__:
        assert getattr(packtool.torch, name) is not None
    assert set(packtool.torch._HOMES) == set(packtool.torch.__all__) - {"TorchMissing"}
    assert isinstance(packtool.torch.IsolationReport, type)
    assert issubclass(packtool.torch.TorchMissing, PacktoolError)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = packtool.torch.nothing
