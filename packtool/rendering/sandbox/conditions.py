"""jinja2's tests (``is even``, ``is in``, ...), of which those that compare or compute pay first."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jinja2.tests
from jinja2.utils import pass_environment

from packtool.rendering.sandbox.filters import text_filter

if TYPE_CHECKING:
    from packtool.rendering.sandbox.environment import Sandbox


def _comparison(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    @pass_environment
    def bounded(sandbox: Sandbox, value: Any, other: Any) -> Any:
        return function(sandbox.weigh(value), sandbox.weigh(other))

    return bounded


def _remainder(wanted: int) -> Callable[..., bool]:
    @pass_environment
    def bounded(sandbox: Sandbox, value: Any) -> bool:
        return bool(sandbox.modulo(value, 2) == wanted)

    return bounded


@pass_environment
def _is_divisible(sandbox: Sandbox, value: Any, num: Any) -> bool:
    return bool(sandbox.modulo(value, num) == 0)


@pass_environment
def _is_in(sandbox: Sandbox, value: Any, seq: Any) -> bool:
    return sandbox.contains(seq, value)


CONDITIONS: dict[str, Any] = {
    **jinja2.tests.TESTS,
    "divisibleby": _is_divisible,
    "even": _remainder(0),
    "odd": _remainder(1),
    "in": _is_in,
    "lower": text_filter(str.islower),
    "upper": text_filter(str.isupper),
    **dict.fromkeys(("==", "eq", "equalto"), _comparison(operator.eq)),
    **dict.fromkeys(("!=", "ne"), _comparison(operator.ne)),
    **dict.fromkeys((">", "gt", "greaterthan"), _comparison(operator.gt)),
    **dict.fromkeys((">=", "ge"), _comparison(operator.ge)),
    **dict.fromkeys(("<", "lt", "lessthan"), _comparison(operator.lt)),
    **dict.fromkeys(("<=", "le"), _comparison(operator.le)),
}
