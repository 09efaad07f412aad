"""Methods that templates may call on texts, lists and the like: each guard pays, then calls. All others are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jinja2.runtime import LoopContext
from jinja2.utils import Cycler
from markupsafe import Markup

from packtool.rendering.sandbox.marks import Marked
from packtool.rendering.sandbox.meter import ITEM, search_cost
from packtool.rendering.sandbox.values import DICT_METHODS

if TYPE_CHECKING:
    from packtool.rendering.sandbox.environment import Sandbox

_Guard = Callable[[Any, Any, tuple[Any, ...], dict[str, Any]], Any]
"""(sandbox, bound method, args, kwargs) -> what the method gives."""


def pay_for_arguments(sandbox: Sandbox, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Pay for reading all arguments of a call."""
    for value in args:
        sandbox.weigh(value)
    for value in kwargs.values():
        sandbox.weigh(value)


def _free(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    pay_for_arguments(sandbox, args, kwargs)
    return method(*args, **kwargs)


def _reads(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sandbox.weigh(method.__self__)
    return _free(sandbox, method, args, kwargs)


def _copies(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner = method.__self__
    sandbox.meter.made(len(owner) if isinstance(owner, str) else ITEM * len(owner))
    return _free(sandbox, method, args, kwargs)


def _strips(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if args and isinstance(args[0], str):
        sandbox.meter.read(len(method.__self__) * len(args[0]))
    return _copies(sandbox, method, args, kwargs)


def _searches(backwards: bool, copies: bool) -> _Guard:
    def guard(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        text = method.__self__
        wanted = args[0] if args else kwargs.get("sep")
        if isinstance(wanted, str):
            sandbox.meter.read(search_cost(len(text), len(wanted), backwards=backwards))
        sandbox.meter.read(len(text))
        if copies:
            sandbox.meter.made(len(text))
        result = _free(sandbox, method, args, kwargs)
        if isinstance(result, list):
            sandbox.meter.step(4 * len(result))
        return result

    return guard


def _pads(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    width = args[0] if args and isinstance(args[0], int) else 0
    sandbox.meter.made(max(width, len(method.__self__)))
    return _free(sandbox, method, args, kwargs)


def _expands_tabs(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    size = args[0] if args else kwargs.get("tabsize", 8)
    sandbox.meter.made(method.__self__.count("\t") * max(size, 0) if isinstance(size, int) else 0)
    return _copies(sandbox, method, args, kwargs)


def _joins(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if kwargs or len(args) != 1:
        return method(*args, **kwargs)  # raises
    parts = list(sandbox.items(args[0]))
    separator = method.__self__
    length = sum(len(part) for part in parts if isinstance(part, str))
    for part in parts if isinstance(separator, Markup) else ():
        sandbox.pay_for_escape(sandbox.soft_text(part))
    sandbox.meter.made(length + len(separator) * len(parts))
    return method(parts)


def _replaces(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if len(args) >= 2 and isinstance(args[0], str) and isinstance(args[1], str):
        pay_for_replacing(sandbox, method.__self__, *args[:3])
    return method(*args, **kwargs)


def pay_for_replacing(sandbox: Sandbox, text: str, old: str, new: str, count: Any = -1) -> None:
    """Pay for ``text.replace(old, new, count)``."""
    sandbox.meter.read(2 * search_cost(len(text), len(old)))
    times = text.count(old)
    if isinstance(count, int) and 0 <= count < times:
        times = count
    # Markup escapes what it puts in: each character may become six.
    grown = len(new) * (6 if isinstance(text, Markup) else 1) - len(old)
    sandbox.meter.made(max(len(text), len(text) + times * grown))


TEXT_METHODS: dict[str, _Guard] = {
    **dict.fromkeys(("casefold", "capitalize", "lower", "removeprefix", "removesuffix", "swapcase"), _copies),
    **dict.fromkeys(("title", "upper"), _copies),
    **dict.fromkeys(("strip", "lstrip", "rstrip"), _strips),
    **dict.fromkeys(("startswith", "endswith"), _free),
    **dict.fromkeys(("isalnum", "isalpha", "isascii", "isdecimal", "isdigit", "isidentifier", "islower"), _reads),
    **dict.fromkeys(("isnumeric", "isprintable", "isspace", "istitle", "isupper"), _reads),
    **dict.fromkeys(("count", "find", "index"), _searches(backwards=False, copies=False)),
    **dict.fromkeys(("rfind", "rindex"), _searches(backwards=True, copies=False)),
    **dict.fromkeys(("partition", "split", "splitlines"), _searches(backwards=False, copies=True)),
    **dict.fromkeys(("rpartition", "rsplit"), _searches(backwards=True, copies=True)),
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), _pads),
    "expandtabs": _expands_tabs,
    "join": _joins,
    "replace": _replaces,
}

METHODS: dict[tuple[type, str], _Guard] = {
    **{(kind, name): guard for kind in (str, Markup, Marked) for name, guard in TEXT_METHODS.items()},
    **{(dict, name): _free for name in DICT_METHODS},
    (dict, "copy"): _copies,
    (list, "copy"): _copies,
    **{(kind, name): _reads for kind in (list, tuple, range) for name in ("count", "index")},
    (float, "is_integer"): _free,
    (int, "bit_length"): _free,
    (LoopContext, "cycle"): _free,
    (LoopContext, "changed"): _free,
    (Cycler, "next"): _free,
    (Cycler, "reset"): _free,
}
