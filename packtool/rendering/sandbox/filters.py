"""jinja2's filters: each pays, then does what jinja2's does, mostly by calling it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2.filters
import jinja2.nodes as nodes
import jinja2.runtime
import jinja2.utils
from jinja2.exceptions import FilterArgumentError
from jinja2.utils import pass_context, pass_environment, pass_eval_context
from markupsafe import Markup, escape

from packtool.rendering.sandbox.compiler import SPEND, SPREAD
from packtool.rendering.sandbox.meter import CALL_STEPS, ITEM, MAX_WIDTH, LimitReached, small_enough
from packtool.rendering.sandbox.methods import pay_for_arguments, pay_for_replacing
from packtool.rendering.sandbox.values import Lazy

if TYPE_CHECKING:
    from packtool.rendering.sandbox.environment import Sandbox


@pass_environment
def _spread(sandbox: Sandbox, value: Any) -> Any:
    return sandbox.items(value)


@pass_environment
def _spend(sandbox: Sandbox, value: Any, steps: int) -> Any:
    sandbox.meter.step(steps)
    return value


def text_filter(function: Callable[..., Any], read: int = 1, grows: int = 1) -> Callable[..., Any]:
    """A filter of one text that is linear in it, at ``read`` and ``grows`` times the price of a copy."""

    @pass_environment
    def bounded(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
        text = sandbox.soft_text(value)
        pay_for_arguments(sandbox, args, kwargs)
        sandbox.meter.read(read * len(text))
        sandbox.meter.made(grows * len(text))
        return function(text, *args, **kwargs)

    return bounded


def _number_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that gives a number, read from a text at times."""

    @pass_environment
    def bounded(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
        sandbox.weigh(value, 16)
        pay_for_arguments(sandbox, args, kwargs)
        return small_enough(function(value, *args, **kwargs))

    return bounded


@pass_environment
def _trim(sandbox: Sandbox, value: Any, chars: str | None = None) -> str:
    text = value if type(value) is str else sandbox.soft_text(value)
    sandbox.meter.made(len(text))
    if chars is not None:
        sandbox.meter.read(len(text) * len(sandbox.soft_text(chars)))
    return text.strip(chars)


@pass_environment
def _string(sandbox: Sandbox, value: Any) -> str:
    return sandbox.soft_text(value)


@pass_environment
def _safe(sandbox: Sandbox, value: Any) -> Markup:
    sandbox.meter.made(len(value) if isinstance(value, str) else 0)
    return Markup(sandbox.soft_text(value))


@pass_environment
def _escape(sandbox: Sandbox, value: Any) -> Markup:
    return sandbox.escaped(value)


@pass_environment
def _force_escape(sandbox: Sandbox, value: Any) -> Markup:
    return sandbox.escaped(str(sandbox.soft_text(value)))


@pass_environment
def _center(sandbox: Sandbox, value: Any, width: int = 80) -> str:
    text = sandbox.soft_text(value)
    sandbox.meter.made(max(width, len(text)))
    return text.center(width)


@pass_environment
def _format(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> str:
    if args and kwargs:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    return sandbox.printf(sandbox.soft_text(value), kwargs or args)


@pass_eval_context
def _replace(context: nodes.EvalContext, value: Any, old: Any, new: Any, count: int | None = None) -> str:
    sandbox: Any = context.environment
    text, old, new = sandbox.soft_text(value), sandbox.soft_text(old), sandbox.soft_text(new)
    limit = -1 if count is None else count
    if not context.autoescape:
        pay_for_replacing(sandbox, str(text), str(old), str(new), limit)
        return str(text).replace(str(old), str(new), limit)
    sandbox.pay_for_escape(text)
    pay_for_replacing(sandbox, Markup(escape(text)), old, new, limit)
    return jinja2.filters.do_replace(context, text, old, new, count)


@pass_eval_context
def _join(context: nodes.EvalContext, value: Any, d: Any = "", attribute: str | int | None = None) -> str:
    sandbox: Any = context.environment
    items = list(sandbox.items(value))
    if attribute is not None:
        _pay_for_attribute(sandbox, attribute, len(items))
        items = [*map(jinja2.filters.make_attrgetter(sandbox, attribute), items)]
    if context.autoescape:
        parts = [sandbox.soft_text(item) for item in items]
        separator = sandbox.soft_text(d)
        for part in (*parts, separator):
            sandbox.pay_for_escape(part)
        sandbox.meter.made(sum(map(len, parts)) + 6 * len(separator) * len(parts))
        return jinja2.filters.sync_do_join(context, parts, separator)
    parts = [str(sandbox.text(item)) for item in items]
    separator = str(sandbox.text(d))
    sandbox.meter.made(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


@pass_environment
def _indent(sandbox: Sandbox, s: str, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    if isinstance(s, str):
        sandbox.meter.made(2 * len(s))
        lines = len(s.splitlines()) + 1  # as many as there are to indent, whatever ends a line
        sandbox.meter.step(4 * lines)
        sandbox.meter.made(lines * (len(width) if isinstance(width, str) else max(width, 0)))
    return jinja2.filters.do_indent(s, width, first, blank)


@pass_environment
def _truncate(sandbox: Sandbox, s: Any, *args: Any, **kwargs: Any) -> Any:
    pay_for_arguments(sandbox, args, kwargs)
    sandbox.meter.made(len(s) * (1 if isinstance(s, str) else ITEM))
    ends = [value for value in (*args, *kwargs.values()) if isinstance(value, str)]
    sandbox.meter.made(sum(map(len, ends)))
    return jinja2.filters.do_truncate(sandbox, s, *args, **kwargs)


@pass_environment
def _wordwrap(
    sandbox: Sandbox,
    s: str,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str | None = None,
    break_on_hyphens: bool = True,
) -> str:
    if isinstance(s, str):
        sandbox.meter.made(4 * len(s))
        sandbox.meter.step(2 * len(s))  # it takes the text to pieces, of two characters in the worst case
        # textwrap's expressions and its cutting of long words take the square of a word's length.
        longest = max(map(len, s.split()), default=0)
        sandbox.meter.read((64 + 4 * longest) * len(s))
        pieces = len(s) // max(width, 1) + len(s.splitlines()) + 1 if isinstance(width, int) else 1
        sandbox.meter.made(min(pieces, len(s)) * len(wrapstring or "\n"))
    return jinja2.filters.do_wordwrap(sandbox, s, width, break_long_words, wrapstring, break_on_hyphens)


@pass_environment
def _striptags(sandbox: Sandbox, value: Any) -> str:
    text = str(sandbox.soft_text(value))
    sandbox.meter.read((64 + text.count("<!--")) * len(text))
    sandbox.meter.made(2 * len(text))
    return jinja2.filters.do_striptags(text)


@pass_environment
def _urlencode(sandbox: Sandbox, value: Any) -> str:
    def quoted(part: Any, for_query: bool) -> str:
        text = sandbox.soft_text(part)
        sandbox.meter.made(12 * len(text))
        return jinja2.utils.url_quote(text, for_qs=for_query)

    if isinstance(value, str) or not isinstance(value, Iterable):
        return quoted(value, False)
    pairs = sandbox.items(value.items() if isinstance(value, dict) else value)
    return "&".join(f"{quoted(key, True)}={quoted(item, True)}" for key, item in pairs)


@pass_eval_context
def _urlize(context: nodes.EvalContext, value: Any, *args: Any, **kwargs: Any) -> str:
    sandbox: Any = context.environment
    text = sandbox.soft_text(value)
    pay_for_arguments(sandbox, args, kwargs)
    extra = sum(len(part) for part in (*args, *kwargs.values()) if isinstance(part, str))
    # Its expressions are not known to be linear.
    sandbox.meter.read(16 * len(text) ** 2)
    sandbox.meter.made(len(text) * (12 + extra))
    return jinja2.filters.do_urlize(context, text, *args, **kwargs)


@pass_eval_context
def _xmlattr(context: nodes.EvalContext, d: Mapping[str, Any], autospace: bool = True) -> str:
    sandbox: Any = context.environment
    for key, value in d.items():
        sandbox.pay_for_escape(sandbox.soft_text(key))
        sandbox.pay_for_escape(sandbox.soft_text(value))
    return jinja2.filters.do_xmlattr(context, d, autospace)


@pass_environment
def _pprint(sandbox: Sandbox, value: Any) -> str:
    size = sandbox.size(value, printed=True)
    sandbox.meter.made(4 * size * _height(value))
    return jinja2.filters.do_pprint(value)


@pass_environment
def _tojson(
    sandbox: Sandbox,
    x: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # transformers' filter, which, unlike jinja2's, escapes nothing for HTML
    size = sandbox.size(x)
    sandbox.meter.made(size)
    if not (ensure_ascii or indent is not None or separators or sort_keys):
        text = _JSON.encode(x)
    else:
        if indent is not None:
            width = len(indent) if isinstance(indent, str) else indent
            if isinstance(width, int) and width > MAX_WIDTH:
                raise LimitReached(f"tojson has an indent above {MAX_WIDTH:,}")
            sandbox.meter.made(4 * size + (size // ITEM + 1) * _height(x) * max(width, 0))
        if separators is not None:
            sandbox.meter.made((size // ITEM + 1) * sum(len(part) for part in separators))
        if sort_keys:
            sandbox.meter.read(32 * size)
        text = json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    sandbox.meter.made(max(0, len(text) - size))
    return text


_JSON = json.JSONEncoder(ensure_ascii=False)


def _height(value: Any) -> int:
    """How many lists and dicts stand in one another; the value was weighed before, so there is an end to them."""
    height = 0
    layer = [value]
    while layer:
        height += 1
        inner: list[Any] = []
        for item in layer:
            if isinstance(item, dict):
                inner.extend(item.values())
            elif isinstance(item, list | tuple):
                inner.extend(item)
        layer = inner
    return height


@pass_environment
def _round(sandbox: Sandbox, value: Any, precision: int = 0, method: Any = "common") -> Any:
    if isinstance(precision, int) and abs(precision) > MAX_WIDTH:
        raise LimitReached(f"round has a precision above {MAX_WIDTH:,}")
    sandbox.weigh(method)
    return small_enough(jinja2.filters.do_round(value, precision, method))


@pass_environment
def _attr(sandbox: Sandbox, obj: Any, name: Any) -> Any:
    sandbox.weigh(name, 16)
    return jinja2.filters.do_attr(sandbox, obj, name)


@pass_environment
def _list(sandbox: Sandbox, value: Any) -> list[Any]:
    return list(sandbox.items(value))


@pass_environment
def _reverse(sandbox: Sandbox, value: Any) -> Any:
    if isinstance(value, str):
        sandbox.meter.made(len(value))
        return value[::-1]
    try:
        return Lazy(sandbox.meter, reversed(value), value)
    except TypeError:
        if not isinstance(value, Iterable):
            raise FilterArgumentError("argument must be iterable") from None
        return list(sandbox.items(value))[::-1]


@pass_environment
def _items(sandbox: Sandbox, value: Any) -> Lazy:
    return Lazy(sandbox.meter, jinja2.filters.do_items(value))


@pass_environment
def _batch(sandbox: Sandbox, value: Any, linecount: int, fill_with: Any = None) -> Lazy:
    if fill_with is not None:
        sandbox.meter.step(4 * linecount)
    return Lazy(sandbox.meter, jinja2.filters.do_batch(sandbox.items(value), linecount, fill_with), value)


@pass_environment
def _slice(sandbox: Sandbox, value: Any, slices: int, fill_with: Any = None) -> Lazy:
    sandbox.meter.step(CALL_STEPS * max(slices, 0))
    return Lazy(sandbox.meter, jinja2.filters.sync_do_slice(sandbox.items(value), slices, fill_with), value)  # type: ignore[arg-type]


def _pay_for_attribute(sandbox: Sandbox, attribute: Any, items: int) -> None:
    """Pay for looking up a dotted path on each of some items."""
    if isinstance(attribute, str):
        sandbox.meter.step(3 * items * (1 + len(attribute)))


def _pay_for_sorting(sandbox: Sandbox, items: Sequence[Any], attribute: Any = None) -> None:
    rounds = len(items).bit_length()
    sandbox.weigh(items, 2 * rounds)
    sandbox.meter.step(len(items) * (CALL_STEPS + rounds))
    _pay_for_attribute(sandbox, attribute, len(items))


def _ordering_filter(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A filter that compares all items; ``place``: where its attribute stands among the arguments."""

    @pass_environment
    def bounded(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
        items = list(sandbox.items(value))
        pay_for_arguments(sandbox, args, kwargs)
        _pay_for_sorting(sandbox, items, args[place] if len(args) > place else kwargs.get("attribute"))
        return function(sandbox, items, *args, **kwargs)

    return bounded


@pass_environment
def _dictsort(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(value, dict):
        _pay_for_sorting(sandbox, list(value.items()))
    pay_for_arguments(sandbox, args, kwargs)
    return jinja2.filters.do_dictsort(value, *args, **kwargs)


@pass_environment
def _unique(sandbox: Sandbox, value: Any, case_sensitive: bool = False, attribute: Any = None) -> Lazy:
    items = list(sandbox.items(value))
    _pay_for_sorting(sandbox, items, attribute)
    others = sum(1 for item in items if attribute is not None or not isinstance(item, str))
    sandbox.meter.read(16 * others**2)  # they may all collide
    return Lazy(sandbox.meter, jinja2.filters.sync_do_unique(sandbox, items, case_sensitive, attribute), value)


@pass_environment
def _sum(sandbox: Sandbox, iterable: Any, attribute: Any = None, start: Any = 0) -> Any:
    items = list(sandbox.items(iterable))
    if attribute is not None:
        _pay_for_attribute(sandbox, attribute, len(items))
        items = [*map(jinja2.filters.make_attrgetter(sandbox, attribute), items)]
    if isinstance(start, str):
        raise TypeError("sum() can't sum strings [use ''.join(seq) instead]")
    for item in items:
        start = sandbox.plus(start, item)
    return start


def _lazy_filter(function: Any) -> Callable[..., Any]:
    """A lazy filter that runs a filter, a test or a look-up on each item."""

    @pass_context
    def bounded(context: jinja2.runtime.Context, value: Any, *args: Any, **kwargs: Any) -> Lazy:
        sandbox: Any = context.environment
        # These filters ask whether there is anything at all before they ask what.
        items = sandbox.items(value) if value else ()
        # A dotted path is looked up part by part on each item.
        path = 3 * sum(len(part) for part in (*args, *kwargs.values()) if isinstance(part, str))
        return Lazy(sandbox.meter, function(context, items, *args, **kwargs), value, path)

    return bounded


FILTERS: dict[str, Callable[..., Any]] = {
    SPEND: _spend,
    SPREAD: _spread,
    "abs": abs,
    "attr": _attr,
    "batch": _batch,
    "capitalize": text_filter(jinja2.filters.do_capitalize),
    "center": _center,
    "count": len,
    "d": jinja2.filters.do_default,
    "default": jinja2.filters.do_default,
    "dictsort": _dictsort,
    "e": _escape,
    "escape": _escape,
    "filesizeformat": _number_filter(jinja2.filters.do_filesizeformat),
    "first": jinja2.filters.sync_do_first,
    "float": _number_filter(jinja2.filters.do_float),
    "forceescape": _force_escape,
    "format": _format,
    "groupby": _ordering_filter(jinja2.filters.sync_do_groupby, 0),
    "indent": _indent,
    "int": _number_filter(jinja2.filters.do_int),
    "items": _items,
    "join": _join,
    "last": jinja2.filters.do_last,
    "length": len,
    "list": _list,
    "lower": text_filter(jinja2.filters.do_lower),
    "map": _lazy_filter(jinja2.filters.sync_do_map),
    "max": _ordering_filter(jinja2.filters.do_max, 1),
    "min": _ordering_filter(jinja2.filters.do_min, 1),
    "pprint": _pprint,
    "reject": _lazy_filter(jinja2.filters.sync_do_reject),
    "rejectattr": _lazy_filter(jinja2.filters.sync_do_rejectattr),
    "replace": _replace,
    "reverse": _reverse,
    "round": _round,
    "safe": _safe,
    "select": _lazy_filter(jinja2.filters.sync_do_select),
    "selectattr": _lazy_filter(jinja2.filters.sync_do_selectattr),
    "slice": _slice,
    "sort": _ordering_filter(jinja2.filters.do_sort, 2),
    "string": _string,
    "striptags": _striptags,
    "sum": _sum,
    "title": text_filter(jinja2.filters.do_title, read=64, grows=4),
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
    "unique": _unique,
    "upper": text_filter(jinja2.filters.do_upper),
    "urlencode": _urlencode,
    "urlize": _urlize,
    "wordcount": text_filter(jinja2.filters.do_wordcount, read=64, grows=8),
    "wordwrap": _wordwrap,
    "xmlattr": _xmlattr,
}
"""jinja2's filters, but ``random``, which gives another text each time."""
