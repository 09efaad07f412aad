"""The environment that templates run in: what compiled code calls, what things cost, and the functions it offers.

It renders one template at a time. It knows neither chat nor records.
"""

import datetime
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils
from jinja2.exceptions import SecurityError
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner
from markupsafe import Markup, escape

from packtool.rendering.sandbox.compiler import GenerationBlock, Generator, NameFinder
from packtool.rendering.sandbox.conditions import CONDITIONS
from packtool.rendering.sandbox.filters import FILTERS
from packtool.rendering.sandbox.formatting import PRINTF, STRFTIME, Formatter
from packtool.rendering.sandbox.marks import Marked, join_marked, mark
from packtool.rendering.sandbox.meter import (
    CALL_STEPS,
    ITEM,
    LONG,
    MAX_NESTING,
    MAX_OTHER_KEYS,
    MAX_WIDTH,
    LimitReached,
    Meter,
    check_widths,
    search_cost,
    small_enough,
)
from packtool.rendering.sandbox.methods import METHODS, TEXT_METHODS
from packtool.rendering.sandbox.plain import SCALARS, digits
from packtool.rendering.sandbox.values import (
    DICT_METHODS,
    DICT_NAMES,
    ITEMS_VIEW,
    LOOP_NAMES,
    PRINTABLE,
    VIEWS,
    DictFunction,
    Function,
    Lazy,
    Namespace,
    name_of,
)


class Raised(jinja2.TemplateError):
    """What ``raise_exception`` raises; its text is the template's own."""


_TEXT = frozenset({str})


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment. It renders one template at a time: the budgets are those of the render that runs."""

    code_generator_class = Generator

    def __init__(
        self, date: datetime.date | None, *, trims: bool = True, undefined: type[Undefined] = Undefined
    ) -> None:
        """Make an environment.

        Args:
            date: ``strftime_now`` gives its first second; without it there is no such function.
            trims: whether a block takes the line break behind it and the white space before it, as in chat templates.
            undefined: what stands for a name that is not there.
        """
        super().__init__(
            trim_blocks=trims,
            lstrip_blocks=trims,
            undefined=undefined,
            optimized=False,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
        )
        self.meter = Meter()
        self.filters = dict(FILTERS)
        self.tests = dict(CONDITIONS)
        self.globals = {
            "range": Function(jinja2.sandbox.safe_range),
            "dict": DictFunction(self._make_dict, Function(self._make_dict_of)),
            "namespace": Function(self._make_namespace),
            "cycler": Function(Cycler),
            "joiner": Function(Joiner),
            "raise_exception": Function(self._raise),
        }
        if date is not None:
            self.globals["strftime_now"] = Function(self._strftime)
        self._now = datetime.datetime.combine(date or datetime.date.min, datetime.time())
        self._weights: Mapping[int, int] = {}
        self._marking = False
        self._blocks_rendered = 0

    def inspect(self, source: str) -> tuple[set[str], bool]:
        """The names that a template looks up in what it is given, and whether a generation block stands in it.

        Raises:
            jinja2.TemplateSyntaxError: it does not compile.
        """
        tree = self.parse(source)
        has_block = any(node.name == "generation" for node in tree.find_all(nodes.EnvironmentAttribute))
        finder = NameFinder(self)
        finder.visit(tree)
        return finder.names, has_block

    def run(
        self,
        template: jinja2.Template,
        variables: Mapping[str, Any],
        weights: Mapping[int, int],
        size: int,
        *,
        marking: bool = False,
    ) -> tuple[str, int]:
        """Render once.

        Args:
            template: made by this environment.
            variables: plain JSON data, none of it to be changed while this runs.
            weights: of its lists and dicts, by id, as ``weigh_plain`` gave them.
            size: what all of it weighs.
            marking: give a ``Marked`` where generation blocks stand in the text.

        Returns:
            the text, and how many generation blocks with any text were rendered.

        Raises:
            Exception: anything that a template can make Python raise.
        """
        self.meter.start(size)
        self._weights = weights
        self._marking = marking
        self._blocks_rendered = 0
        context = self.context_class(self, {**self.globals, **variables}, template.name, template.blocks)
        return self.concat(template.root_render_func(context)), self._blocks_rendered

    # -- what compiled templates call

    def concat(self, pieces: Iterable[str]) -> str:
        """Join pieces of output."""
        parts = pieces if type(pieces) is list else list(pieces)
        self.meter.made(sum(map(len, parts)))
        return join_marked(parts, self.meter) if self._marking else "".join(parts)

    def text(self, value: Any) -> str:
        """``str(value)``, for what has a text that is the same each time."""
        kind = type(value)
        if kind is str or kind is Marked:
            return value  # type: ignore[no-any-return]
        if kind not in SCALARS:
            self.pay_for_text(value)
        text = str(value)
        self.meter.made(len(text))
        return text

    printed = text
    """What is printed of a value; to be replaced where not everything may be."""

    def escaped(self, value: Any) -> Markup:
        """``escape(value)``, for output where autoescape is on."""
        text = self.soft_text(value)
        self.pay_for_escape(text)
        return escape(text)

    def soft_text(self, value: Any) -> str:
        """``value`` if it is a text, safe markup included, else its text."""
        return value if isinstance(value, str) else self.text(value)

    def generation(self, caller: Macro) -> str:
        """Render a generation block."""
        text = caller()
        if not self._marking or not text:
            return text
        self._blocks_rendered += 1
        if isinstance(text, Markup):
            return text
        inner = text.marks if type(text) is Marked else ()
        self.meter.step(len(inner))
        return mark(text, (*inner, (0, len(text), self._blocks_rendered)))

    def concat_texts(self, values: Sequence[Any]) -> str:
        """``a ~ b``."""
        return self.concat([self.text(value) for value in values])

    def concat_markup(self, values: Sequence[Any]) -> str:
        """``a ~ b`` where autoescape is on."""
        texts = [self.soft_text(value) for value in values]
        for text in texts:
            self.pay_for_escape(text)
        self.meter.made(sum(map(len, texts)))
        return jinja2.runtime.markup_join(texts)

    def plus_all(self, operands: Sequence[Any]) -> Any:
        """``a + b + c``: texts are joined at once."""
        if _TEXT.issuperset(map(type, operands)):
            self.meter.made(sum(map(len, operands)))
            return "".join(operands)
        result = operands[0]
        for operand in operands[1:]:
            result = self.plus(result, operand)
        return result

    def plus(self, left: Any, right: Any) -> Any:
        """``a + b``."""
        if type(left) is str and type(right) is str:
            self.meter.made(len(left) + len(right))
            return left + right
        if isinstance(left, str) and isinstance(right, str):
            self.meter.made(len(left) + len(right))
            if isinstance(left, Markup) or isinstance(right, Markup):
                self.pay_for_escape(left)
                self.pay_for_escape(right)
                return left + right
            return join_marked((left, right), self.meter)
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self.meter.made(ITEM * (len(left) + len(right)))
        return small_enough(left + right)

    def minus(self, left: Any, right: Any) -> Any:
        """``a - b``; of numbers only, for a difference of a dict's keys has an order of its own in each process."""
        if type(left) is int and type(right) is int:
            return small_enough(left - right)
        if not isinstance(left, int | float | Undefined) or not isinstance(right, int | float | Undefined):
            raise TypeError(f"unsupported operand type(s) for -: {type(left).__name__!r} and {type(right).__name__!r}")
        return small_enough(left - right)

    def times(self, left: Any, right: Any) -> Any:
        """``a * b``."""
        for items, count in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple) and isinstance(count, int):
                self.meter.made(len(items) * max(count, 0) * (1 if isinstance(items, str) else ITEM))
        return small_enough(left * right)

    def power(self, left: Any, right: Any) -> Any:
        """``a ** b``."""
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 4096:
            raise LimitReached("it computes too large a number")
        return small_enough(left**right)

    def modulo(self, left: Any, right: Any) -> Any:
        """``a % b``, of numbers, or a format and its values."""
        return self.printf(left, right) if isinstance(left, str) else small_enough(left % right)

    def printf(self, pattern: str, values: Any) -> str:
        """``pattern % values``, with bounded widths."""
        self.meter.read(256 * len(pattern))
        length = len(pattern)
        whole = True
        for spec in PRINTF.finditer(pattern):
            key, width, precision, kind = spec.group("key", "width", "precision", "kind")
            if kind == "(":
                raise LimitReached("a format has brackets within brackets")
            if "*" in (width, precision):
                items = values if isinstance(values, tuple) else (values,)
                check_widths(str(abs(item)) for item in items if isinstance(item, int))
                length += 2 * MAX_WIDTH
            else:
                check_widths((width, precision or ""))
                length += int(width or 0) + int(precision or 0)
            if key is not None and isinstance(values, dict):
                self.pay_for_text(values.get(key))
                whole = False
        # A value with a key is paid for each time it is named; without keys all of them may be printed whole.
        if whole or pattern.count("%(") != pattern.count("%"):
            self.pay_for_text(values)
        self.meter.made(length)
        result: str = pattern % values
        self.meter.made(len(result) * (6 if isinstance(pattern, Markup) else 1))
        return result

    def contains(self, container: Any, item: Any) -> bool:
        """``item in container``."""
        kind = type(container)
        if isinstance(container, str):
            if isinstance(item, str):
                self.meter.read(search_cost(len(container), len(item)))
        elif type(item) is str and (kind is list or kind is dict):
            # Only what is a text is read beyond its type, and only as far as this one goes.
            self.meter.read(len(container) * (ITEM + len(item)))
        else:
            if kind in (Lazy, LoopContext):
                container = list(self.items(container))
            self.weigh(item)
            if not isinstance(container, dict):
                self.weigh(container)
        return item in container

    def weigh(self, value: Any, times: int = 1) -> Any:
        """Pay for comparing or hashing a value, and give it back."""
        kind = type(value)
        if kind is str:
            self.meter.read(len(value) * times)
        elif kind not in SCALARS:
            self.meter.read(self.size(value) * times)
        return value

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """``value[start:stop:step]``."""
        part = slice(start, stop, step)
        if isinstance(value, str | list | tuple):
            count = len(range(*part.indices(len(value))))
            self.meter.made(count if isinstance(value, str) else count * ITEM)
        return value[part]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``."""
        kind = type(obj)
        if kind is dict:
            if attribute not in DICT_NAMES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if attribute in DICT_METHODS:
                return getattr(obj, attribute)
        elif kind is str:
            if attribute in TEXT_METHODS:
                return getattr(obj, attribute)
        elif kind is Namespace:
            attributes = object.__getattribute__(obj, "_Namespace__attrs")
            if attribute in attributes:
                return attributes[attribute]
        elif kind is LoopContext and attribute in LOOP_NAMES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``."""
        kind = type(argument)
        if kind is str:
            if len(argument) > LONG:
                self.meter.read(4 * len(argument))
            if type(obj) is dict and argument in obj:
                return obj[argument]
        elif kind is not int:
            self.weigh(argument)
        return super().getitem(obj, argument)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """``text.format`` and ``text.format_map``, bounded."""
        if not isinstance(value, MethodType | BuiltinMethodType) or value.__name__ not in ("format", "format_map"):
            return None
        pattern = value.__self__
        if not isinstance(pattern, str):
            return None
        text_pattern: str = pattern
        formatter = Formatter(self, isinstance(text_pattern, Markup))
        is_map = value.__name__ == "format_map"

        def bounded_format(*args: Any, **kwargs: Any) -> str:
            if is_map:
                if kwargs or len(args) != 1:
                    raise TypeError("format_map() takes exactly one argument, a mapping")
                args, kwargs = (), next(iter(args))
            self.meter.read(256 * len(text_pattern))
            self.meter.step(len(text_pattern))
            text = formatter.vformat(text_pattern, args, kwargs)
            self.meter.made(len(text))
            return Markup(text) if isinstance(text_pattern, Markup) else text

        return Function(bounded_format)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """``obj(...)``: only what is listed may be called."""
        meter = self.meter
        meter.step(CALL_STEPS + 4 * len(args))
        if kwargs:
            meter.step(4 * len(kwargs))
            kwargs.pop("_loop_vars", None)
            kwargs.pop("_block_vars", None)
        kind = type(obj)
        if kind is BuiltinMethodType or kind is MethodType:
            owner = obj.__self__
            if kind is MethodType and owner is self:
                meter.enter()
                result = obj(*args, **kwargs)
                meter.depth -= 1
                return result
            guard = METHODS.get((type(owner), obj.__name__))
            if guard is not None:
                return guard(self, obj, args, kwargs)
        elif kind is Macro or kind is LoopContext or kind is BlockReference:
            meter.enter()
            # A macro takes first whether autoescape is on where it is called.
            result = obj(context.eval_ctx, *args, **kwargs) if kind is Macro else obj(*args, **kwargs)
            meter.depth -= 1
            return result
        elif kind is Function or kind is DictFunction or kind is Joiner:
            return obj(*args, **kwargs)
        elif isinstance(obj, Undefined):
            return obj(*args, **kwargs)  # raises what is undefined
        raise SecurityError(f"a template may not call {name_of(obj)}")

    # -- what things cost

    def pay_for_text(self, value: Any) -> None:
        """Pay for ``str(value)``; refuse what has no text, or one that is another each time (an address)."""
        kind = type(value)
        if kind not in SCALARS:
            self.meter.made(len(value) if kind is str else self.size(value, printed=True))

    def pay_for_escape(self, text: str) -> None:
        """Pay for ``escape(text)``."""
        if not isinstance(text, Markup):
            self.meter.made(len(text) + 4 * sum(map(text.count, "&<>\"'")))

    def size(self, value: Any, *, printed: bool = False) -> int:
        """What a value weighs, all that is in it included, each time it is.

        Args:
            value: anything a template can hold.
            printed: refuse what has no text of its own.
        """
        self.meter.step(4)
        weights = self._weights
        total = 0
        waiting: list[tuple[Any, int]] = [(value, 1)]
        while waiting:
            value, depth = waiting.pop()
            kind = type(value)
            if kind in SCALARS:
                total += ITEM + digits(value) if kind is int else ITEM
                continue
            if isinstance(value, str):
                total += len(value) + ITEM
                continue
            known = weights.get(id(value))
            if known is not None:
                total += known
                continue
            items: Iterable[Any]
            if isinstance(value, list | tuple):
                items = value
            elif kind is dict:
                items = (part for pair in value.items() for part in pair)
            elif kind in VIEWS:
                items = value if kind is not ITEMS_VIEW else (part for pair in value for part in pair)
            elif isinstance(value, jinja2.utils.Namespace):
                attributes = object.__getattribute__(value, "_Namespace__attrs")
                items = (part for pair in attributes.items() for part in pair)
            elif kind is range:
                total += 64 if printed else len(value)
                continue
            elif printed and not isinstance(value, Undefined) and kind not in PRINTABLE:
                raise LimitReached(f"it prints {name_of(value)}, which has no text of its own")
            else:
                total += 64
                continue
            if depth > MAX_NESTING:
                raise LimitReached(f"it nests lists more than {MAX_NESTING} deep")
            before = len(waiting)
            waiting.extend((item, depth + 1) for item in items)
            total += ITEM
            self.meter.step(4 * (1 + len(waiting) - before))
        return total

    def items(self, value: Any) -> Iterable[Any]:
        """``value`` for iterating over all of it, paid for."""
        if isinstance(value, str | list | tuple | dict | range) or type(value) in VIEWS:
            self.meter.step(4 * len(value))
            return value  # type: ignore[no-any-return]
        return value if type(value) is Lazy else Lazy(self.meter, value)

    # -- functions of templates

    def _raise(self, message: Any) -> NoReturn:
        raise Raised(self.text(message))

    def _strftime(self, format: str) -> str:  # transformers' name
        for spec in STRFTIME.finditer(format):
            check_widths((spec.group("width"),))
            if spec.group("kind") == "s":
                raise LimitReached("strftime_now('%s') depends on the machine's time zone")
            self.meter.made(64 + int(spec.group("width") or 0))
        self.meter.made(len(format))
        return self._now.strftime(format)

    def _make_dict(self, /, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        result: dict[Any, Any] = {}
        if len(args) > 1:
            raise TypeError(f"dict expected at most 1 argument, got {len(args)}")
        for source in args:
            pairs = source.items() if type(source) is dict else source
            for pair in self.items(pairs):
                key, value = pair
                result[self.weigh(key)] = value
        result.update(kwargs)
        return self._few_other_keys(result)

    def _make_namespace(self, /, *args: Any, **kwargs: Any) -> Namespace:
        return Namespace(self._make_dict(*args, **kwargs))

    def _make_dict_of(self, keys: Any, value: Any = None, /) -> dict[Any, Any]:
        return self._few_other_keys({self.weigh(key): value for key in self.items(keys)})

    def _few_other_keys(self, result: dict[Any, Any]) -> dict[Any, Any]:
        if sum(1 for key in result if not isinstance(key, str)) > MAX_OTHER_KEYS:
            raise LimitReached(f"a dict has more than {MAX_OTHER_KEYS} keys that are not text")
        return result
