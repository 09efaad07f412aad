"""From packs to training steps: the only package of packtool that imports torch.

    loader = packed_dataloader("packed", batch_packs=8)
    for batch in loader:
        loss = model(**batch, use_cache=False).loss

Names load what they need when first used, so that importing this package alone stays quick.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from packtool.errors import PacktoolError

if TYPE_CHECKING:
    from packtool.torch.attention import varlen_attention
    from packtool.torch.collator import VarlenCollator
    from packtool.torch.dataset import BLANK, PackedDataset
    from packtool.torch.isolation import IsolationReport, check_isolation
    from packtool.torch.loader import PackedDataLoader, packed_dataloader
    from packtool.torch.sampler import PackSampler

_HOMES = {
    "BLANK": "packtool.torch.dataset",
    "PackedDataset": "packtool.torch.dataset",
    "VarlenCollator": "packtool.torch.collator",
    "PackSampler": "packtool.torch.sampler",
    "PackedDataLoader": "packtool.torch.loader",
    "packed_dataloader": "packtool.torch.loader",
    "varlen_attention": "packtool.torch.attention",
    "check_isolation": "packtool.torch.isolation",
    "IsolationReport": "packtool.torch.isolation",
}

__all__ = [
    "BLANK",
    "IsolationReport",
    "PackSampler",
    "PackedDataLoader",
    "PackedDataset",
    "TorchMissing",
    "VarlenCollator",
    "check_isolation",
    "packed_dataloader",
    "varlen_attention",
]


class TorchMissing(PacktoolError, ImportError):
    """torch is not installed. An ImportError too, for those who try imports."""


if find_spec("torch") is None:
    raise TorchMissing(
        "packtool.torch needs torch: pip install 'packtool[torch]' (from a clone: pip install '.[torch]')"
    )


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'packtool.torch' has no attribute {name!r}")
