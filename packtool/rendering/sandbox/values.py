"""What templates hold beside plain data: lazy items, namespaces, functions; and which names of them are harmless."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any

import jinja2.utils
from jinja2.exceptions import SecurityError
from jinja2.runtime import LoopContext, Macro

from packtool.rendering.sandbox.meter import CALL_STEPS, MAX_LAZY_NESTING, LimitReached, Meter


class Lazy:
    """What a lazy filter gives: an iterator that pays for each item, and has no text that could be printed."""

    __slots__ = ("_items", "_meter", "_price", "nesting")

    def __init__(self, meter: Meter, items: Iterable[Any], source: Any = None, extra: int = 0) -> None:
        """Wrap ``items``, which come from ``source``; each costs ``extra`` steps more than a call."""
        self.nesting: int = source.nesting + 1 if type(source) is Lazy else 1
        if self.nesting > MAX_LAZY_NESTING:
            raise LimitReached(f"it feeds more than {MAX_LAZY_NESTING} lazy filters into one another")
        self._meter = meter
        self._price = CALL_STEPS + extra
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._meter.step(self._price)
        return next(self._items)


class Namespace(jinja2.utils.Namespace):
    """``namespace``: names that begin with an underscore are refused, they could reach into Python."""

    def __init__(self, attributes: Mapping[Any, Any]) -> None:
        for name in attributes:
            _refuse_underscore(name)
        super().__init__(attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _refuse_underscore(name)
        super().__setitem__(name, value)


def _refuse_underscore(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace takes no name with an underscore first, and got {name!r}")


class Function:
    """A function that templates may call."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class DictFunction(Function):
    """``dict``: makes one, and has ``fromkeys``."""

    __slots__ = ("fromkeys",)

    def __init__(self, make: Callable[..., Any], fromkeys: Function) -> None:
        super().__init__(make)
        self.fromkeys = fromkeys


ITEMS_VIEW: type = type({}.items())
VIEWS = frozenset({type({}.keys()), type({}.values()), ITEMS_VIEW})
PRINTABLE = frozenset({complex, Macro, LoopContext})
"""Types that print the same each time, beside data, lists, dicts and namespaces."""

# Look-ups that are safe, and so frequent that jinja2's way of finding that out is worth going round
DICT_NAMES = frozenset(dir(dict))
DICT_METHODS = frozenset({"get", "items", "keys", "values"})
LOOP_NAMES = frozenset({"first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"})


def name_of(value: Any) -> str:
    """What to call a value in a message: never its address."""
    if isinstance(value, MethodType | BuiltinMethodType):
        return f"{type(value.__self__).__name__}.{value.__name__}"
    return f"a value of type {'generator' if type(value) is Lazy else type(value).__name__}"
