"""packtool packs a dataset offline, once: segments, position_ids and labels that are right.

Importing this package loads neither torch nor datasets nor transformers; the functions below load
what they need when first used.
"""

__version__ = "0.1.0"

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to import as Python takes to start, and the console script begins here
    from typing import Any

    from packtool.comparison import plan
    from packtool.config import PackConfig, PlanConfig
    from packtool.errors import BadData, Misuse, PacktoolError
    from packtool.inspection import show
    from packtool.run import pack
    from packtool.statistics import stats
    from packtool.verification import verify

_HOMES = {
    "PackConfig": "packtool.config",
    "PlanConfig": "packtool.config",
    "PacktoolError": "packtool.errors",
    "Misuse": "packtool.errors",
    "BadData": "packtool.errors",
    "pack": "packtool.run",
    "plan": "packtool.comparison",
    "show": "packtool.inspection",
    "stats": "packtool.statistics",
    "verify": "packtool.verification",
}

__all__ = [
    "BadData",
    "Misuse",
    "PackConfig",
    "PacktoolError",
    "PlanConfig",
    "__version__",
    "pack",
    "plan",
    "show",
    "stats",
    "verify",
]


def __getattr__(name: str) -> "Any":
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'packtool' has no attribute {name!r}")
