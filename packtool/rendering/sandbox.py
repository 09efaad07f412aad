"""A jinja2 environment for templates that nobody has read: it takes a template and plain data and gives text.

It has the functions, filters, tags and white-space rules that ``transformers`` gives chat templates, and two
things that those lack. What a template may call is listed here, all else is refused. And all that it does is paid
for, before it is done, from two budgets that are counts (``Meter``), so a render ends, in bounded memory, at the
same place on every machine. It knows neither chat nor records.

How the paying works. The compiled template charges itself for each turn of a loop and each call of a macro, by the
number of nodes in its body. Operators, comparisons, slices, literals' keys, ``~``, printing and filters, which in
plain jinja2 run without asking anybody, go through methods of the environment that know what they cost.
"""

import datetime
import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import BuiltinMethodType, MethodType
from typing import Any, NoReturn

import jinja2
import jinja2.compiler
import jinja2.ext
import jinja2.filters
import jinja2.nodes as nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.tests
import jinja2.utils
from jinja2.exceptions import FilterArgumentError, SecurityError
from jinja2.runtime import BlockReference, LoopContext, Macro, Undefined
from jinja2.utils import Cycler, Joiner, pass_context, pass_environment, pass_eval_context
from markupsafe import Markup, escape

MAX_SOURCE = 1 << 18
"""Characters in a template's source: a few seconds of compiling. The longest that people use have 20,000."""

BASE_STEPS = 8_000_000
"""Steps any render may take: about a node of the template visited, or an item of a list. A second or two."""

BASE_CHARACTERS = 1 << 30
"""Characters any render may read. Making one counts as reading ``MADE``, so 64 million of them."""

MADE = 16
"""What making a character costs, as so many characters read: time is bounded by both, memory by what is made."""

MAX_CALL_DEPTH = 100
"""Macros and recursive loops within one another: well below where Python itself would stop."""

MAX_NESTING = 100
"""Lists and dicts within one another, in the data and again in what a template builds of it."""

MAX_LAZY_NESTING = 50
"""Lazy filters (``map``, ``select``, ...) fed by one another."""

MAX_WIDTH = 1_000
"""A width or precision in a format (``%9d``, ``{:>9}``), an indentation of JSON."""

MAX_INTEGER = 1 << 2048
"""No integer, given or computed, reaches this: products of numbers at the limit still cost next to nothing."""

MAX_OTHER_KEYS = 128
"""Keys in one dict made by a template that are not text: numbers can be chosen so that all of them collide."""

_ITEM = 8
"""What an item of a list or dict weighs, in characters."""

_LONG = 64
"""Characters from which on comparing a text is paid for, where it is frequent."""

_CALL_STEPS = 8
"""What a call or an item through a lazy filter costs, beside what is called."""


class LimitReached(jinja2.TemplateRuntimeError):
    """A template asked for more than a bound of this module allows."""


class Raised(jinja2.TemplateError):
    """What ``raise_exception`` raises; its text is the template's own."""


class NotPlain(Exception):
    """A value handed to a template is not plain JSON data; the text says what it is."""


class Meter:
    """The two budgets of one render, and how deep it is in calls.

    A budget has a fixed base and grows with the size of the data, so that long conversations keep their due and a
    template's tricks on a short one end soon.
    """

    __slots__ = ("characters", "depth", "steps")

    def __init__(self) -> None:
        self.start(0)

    def start(self, size: int) -> None:
        """Begin a render over data of ``size`` characters (see ``weigh_plain``)."""
        # The middle terms let a template walk all of 1,000 messages once for each, or copy its whole text so.
        self.steps = BASE_STEPS + min(size << 9, 16 * BASE_STEPS) + size
        self.characters = BASE_CHARACTERS + min(size << 14, 16 * BASE_CHARACTERS) + (size << 8)
        self.depth = 0

    def step(self, count: int) -> None:
        """Pay for ``count`` steps."""
        self.steps -= count
        if self.steps < 0:
            self.too_long()

    def read(self, count: int) -> None:
        """Pay for reading ``count`` characters."""
        self.characters -= count
        if self.characters < 0:
            raise LimitReached("it reads too much text")

    def made(self, count: int) -> None:
        """Pay for making ``count`` characters, before they are made."""
        self.characters -= MADE * count
        if self.characters < 0:
            raise LimitReached("it makes too much text, or lists too long")

    def too_long(self) -> NoReturn:
        """Say that the steps are used up."""
        raise LimitReached("it runs too long")

    def enter(self) -> None:
        """Go one call deeper; ``depth`` is taken back by whoever called."""
        self.depth += 1
        if self.depth > MAX_CALL_DEPTH:
            raise LimitReached(f"it has more than {MAX_CALL_DEPTH} calls within one another")


_FIXED = frozenset({float, bool, type(None)})
_SCALARS = _FIXED | {int}


def _digits(number: int) -> int:
    """At least how many digits a number has, small ones apart."""
    return number.bit_length() >> 1


def weigh_plain(value: Any, weights: dict[int, int], depth: int = 1) -> int:
    """Make sure that a value is plain JSON data, and weigh it.

    Args:
        value: str, int, float, bool, None, or lists and dicts with text keys of them; exactly these types.
        weights: takes for each list and dict, by its id, what it weighs.
        depth: how many lists and dicts it stands in, itself included.

    Returns:
        its characters, and 8 for each item.

    Raises:
        NotPlain: something else is in it, or it is nested too deeply.
    """
    kind = type(value)
    if kind is str:
        return len(value) + _ITEM
    if kind is int:
        if not -MAX_INTEGER < value < MAX_INTEGER:
            raise NotPlain("a number of more than 600 digits")
        return _ITEM + _digits(value)
    if kind in _FIXED:
        return _ITEM
    if depth > MAX_NESTING:
        raise NotPlain(f"lists and objects more than {MAX_NESTING} deep")
    size = _ITEM
    if kind is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise NotPlain(f"a key of type {type(key).__name__}")
            size += len(key) + _ITEM
            item_kind = type(item)
            if item_kind is str:
                size += len(item)
            elif item_kind not in _FIXED:
                size += weigh_plain(item, weights, depth + 1)
    elif kind is list:
        for item in value:
            size += weigh_plain(item, weights, depth + 1)
    else:
        raise NotPlain(f"a value of type {kind.__name__}")
    weights[id(value)] = size
    return size


class Marked(str):
    """A text that knows where the generation blocks stand in it, while it is only joined to others.

    Anything else that is done to it gives a plain ``str``: the blocks' places are lost then, never guessed.
    """

    __slots__ = ("marks",)
    marks: tuple[tuple[int, int, int], ...]
    """Start, end, and the number of the block in the order of rendering."""


def _marked(text: str, marks: Iterable[tuple[int, int, int]]) -> Marked:
    result = Marked(text)
    result.marks = tuple(marks)
    return result


def _joined(parts: Sequence[str], meter: Meter) -> str:
    """Join texts; generation blocks in them keep their places."""
    text = "".join(parts)
    marks: list[tuple[int, int, int]] = []
    position = 0
    for part in parts:
        if type(part) is Marked:
            meter.step(len(part.marks))
            marks.extend((start + position, end + position, number) for start, end, number in part.marks)
        position += len(part)
    return _marked(text, marks) if marks else text


class _Lazy:
    """What a lazy filter gives: an iterator that pays for each item, and has no text that could be printed."""

    __slots__ = ("_items", "_meter", "_price", "nesting")

    def __init__(self, meter: Meter, items: Iterable[Any], source: Any = None, extra: int = 0) -> None:
        """Wrap ``items``, which come from ``source``; each costs ``extra`` steps more than a call."""
        self.nesting: int = source.nesting + 1 if type(source) is _Lazy else 1
        if self.nesting > MAX_LAZY_NESTING:
            raise LimitReached(f"it feeds more than {MAX_LAZY_NESTING} lazy filters into one another")
        self._meter = meter
        self._price = _CALL_STEPS + extra
        self._items = iter(items)

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._meter.step(self._price)
        return next(self._items)


class _Namespace(jinja2.utils.Namespace):
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


class _Function:
    """A function that templates may call."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _DictFunction(_Function):
    """``dict``: makes one, and has ``fromkeys``."""

    __slots__ = ("fromkeys",)

    def __init__(self, make: Callable[..., Any], fromkeys: _Function) -> None:
        super().__init__(make)
        self.fromkeys = fromkeys


class _Formatter(jinja2.sandbox.SandboxedFormatter):
    """``str.format`` whose widths are bounded and whose fields are paid for."""

    def __init__(self, environment: "Sandbox", escaping: bool) -> None:
        super().__init__(environment)
        self._sandbox = environment
        self._escaping = escaping

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return value
        self._sandbox.pay_for_text(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        _check_widths(re.findall(r"\d+", format_spec))
        self._sandbox.pay_for_text(value)
        if self._escaping and isinstance(value, Markup) and not format_spec:
            return str(value)
        text = format(value, format_spec)
        if self._escaping:
            self._sandbox.pay_for_escape(text)
            text = str(escape(text))
        self._sandbox.meter.made(len(text))
        return text


def _check_widths(numbers: Iterable[str]) -> None:
    for number in numbers:
        if len(number) > 9 or int(number or 0) > MAX_WIDTH:
            raise LimitReached(f"a format has a width above {MAX_WIDTH:,}")


class _GenerationBlock(jinja2.ext.Extension):
    """``{% generation %}...{% endgeneration %}``: a call block, with a call block's scopes."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's way)

    def parse(self, parser: jinja2.parser.Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = nodes.Call(nodes.EnvironmentAttribute("generation"), [], [], None, None)
        return nodes.CallBlock(call, [], [], body).set_lineno(line)


_NODE_COST: dict[type[nodes.Node], int] = {
    nodes.Call: 4,
    nodes.CallBlock: 8,
    nodes.Dict: 8,
    nodes.Filter: 2,
    nodes.Getattr: 2,
    nodes.Getitem: 2,
    nodes.List: 4,
    nodes.Macro: 8,
    nodes.Tuple: 4,
}
"""Nodes that cost more than one step: calls and look-ups take time, literals take memory."""

_SCOPED_BLOCK_COST = 2_000
"""Steps of entering a scoped block: it copies all variables."""


def _cost(body: Iterable[nodes.Node]) -> int:
    """Steps of running some nodes once, without what the bodies of inner loops, macros and blocks pay themselves."""
    total = 0
    waiting = list(body)
    while waiting:
        node = waiting.pop()
        total += _NODE_COST.get(type(node), 1)
        if isinstance(node, nodes.For):
            waiting.extend(node.iter_child_nodes(exclude=("body", "test")))
        elif isinstance(node, nodes.CallBlock):
            waiting.append(node.call)
        elif isinstance(node, nodes.Block):
            total += _SCOPED_BLOCK_COST if node.scoped else 0
        elif not isinstance(node, nodes.Macro):
            waiting.extend(node.iter_child_nodes())
    return total


def _is_small(node: nodes.Node) -> bool:
    """Whether comparing with it costs next to nothing: a short constant, or a few of them."""
    if isinstance(node, nodes.Const):
        return not isinstance(node.value, str) or len(node.value) <= _LONG
    if isinstance(node, nodes.List | nodes.Tuple):
        return len(node.items) <= 32 and all(isinstance(item, nodes.Const) and _is_small(item) for item in node.items)
    return False


class _Generator(jinja2.compiler.CodeGenerator):
    """Compiles a template to Python that pays for what it does."""

    def visit_Template(self, node: nodes.Template, frame: jinja2.compiler.Frame | None = None) -> None:  # noqa: N802
        # blockvisit gets a bare list of nodes, so its price is looked up by the list's identity.
        self._prices: dict[int, int] = {}
        for loop in node.find_all(nodes.For):
            self._prices[id(loop.body)] = 4 + _cost([loop.target, *loop.body])
            if loop.test is not None:
                price = nodes.Const(2 + _cost([loop.test]))
                spend = nodes.Filter(nodes.Const(True), _SPEND, [price], [], None, None, lineno=loop.lineno)
                loop.test = nodes.And(spend, loop.test, lineno=loop.lineno)
        macros: Iterable[Any] = node.find_all((nodes.Macro, nodes.CallBlock))
        for macro in macros:
            self._prices[id(macro.body)] = 4 + _cost([*macro.body, *macro.args, *macro.defaults])
        for block in node.find_all(nodes.Block):
            self._prices[id(block.body)] = 4 + _cost(block.body)
        calls: Iterable[Any] = node.find_all((nodes.Call, nodes.Filter, nodes.Test))
        for call in calls:
            if call.dyn_args is not None:
                call.dyn_args = nodes.Filter(call.dyn_args, _SPREAD, [], [], None, None, lineno=call.lineno)
        super().visit_Template(node, frame)

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("meter = environment.meter")
        self.writeline("text = environment.text")

    def blockvisit(self, body: Iterable[nodes.Node], frame: jinja2.compiler.Frame) -> None:
        price = self._prices.get(id(body))
        if price is not None:
            self.writeline(f"meter.steps -= {price}")
            self.writeline("if meter.steps < 0: meter.too_long()")
        super().blockvisit(body, frame)

    def _output_child_to_const(self, node: nodes.Expr, frame: jinja2.compiler.Frame, finalize: Any) -> str:
        # Nothing is computed while compiling, where nobody counts.
        if isinstance(node, nodes.TemplateData | nodes.Const):
            return super()._output_child_to_const(node, frame, finalize)
        raise nodes.Impossible

    def _output_child_pre(
        self,
        node: nodes.Expr,  # noqa: ARG002
        frame: jinja2.compiler.Frame,
        finalize: Any,  # noqa: ARG002
    ) -> None:
        if frame.eval_ctx.volatile:
            self.write("(environment.escaped if context.eval_ctx.autoescape else text)(")
        elif frame.eval_ctx.autoescape:
            self.write("environment.escaped(")
        else:
            self.write("text(")

    def visit_EvalContextModifier(  # noqa: N802
        self, node: nodes.EvalContextModifier, frame: jinja2.compiler.Frame
    ) -> None:
        for keyword in node.options:
            self.writeline(f"context.eval_ctx.{keyword.key} = ")
            self.visit(keyword.value, frame)
            if isinstance(keyword.value, nodes.Const):
                setattr(frame.eval_ctx, keyword.key, keyword.value.value)
            else:
                frame.eval_ctx.volatile = True

    def visit_Concat(self, node: nodes.Concat, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        # Where only the run tells whether autoescape is on, jinja2 joins plain text.
        kind = "markup" if frame.eval_ctx.autoescape and not frame.eval_ctx.volatile else "texts"
        self._arguments(f"environment.concat_{kind}", [node.nodes], frame, joined=True)

    def visit_Add(self, node: nodes.BinExpr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        operands: list[nodes.Node] = [node.right]
        left = node.left
        while isinstance(left, nodes.Add):
            operands.append(left.right)
            left = left.left
        operands.append(left)
        operands.reverse()
        if len(operands) == 2:
            self._arguments("environment.plus", operands, frame)
        else:
            self._arguments("environment.plus_all", [operands], frame, joined=True)

    def visit_Sub(self, node: nodes.BinExpr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self._arguments("environment.minus", (node.left, node.right), frame)

    def visit_Mul(self, node: nodes.BinExpr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self._arguments("environment.times", (node.left, node.right), frame)

    def visit_Pow(self, node: nodes.BinExpr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self._arguments("environment.power", (node.left, node.right), frame)

    def visit_Mod(self, node: nodes.BinExpr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        self._arguments("environment.modulo", (node.left, node.right), frame)

    def visit_Compare(self, node: nodes.Compare, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        first = node.ops[0]
        if len(node.ops) == 1:
            if first.op in ("in", "notin") and not _is_small(first.expr):
                self.write("(not " if first.op == "notin" else "(")
                self._arguments("environment.contains", (first.expr, node.expr), frame)
                self.write(")")
                return
            if _is_small(first.expr) or (_is_small(node.expr) and isinstance(node.expr, nodes.Const)):
                super().visit_Compare(node, frame)
                return
        # In a chain a search may be among the comparisons: its worst case costs many times the length.
        times = 1 if len(node.ops) == 1 else 32
        self.write("(")
        self._arguments("environment.weigh", (node.expr, nodes.Const(times)), frame)
        for operand in node.ops:
            self.write(f" {jinja2.compiler.operators[operand.op]} ")
            self._arguments("environment.weigh", (operand.expr, nodes.Const(times)), frame)
        self.write(")")

    def visit_Getattr(self, node: nodes.Getattr, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        if len(node.attr) > _LONG:  # looked up as an item: a long name is paid for there
            node = nodes.Getitem(node.node, nodes.Const(node.attr), node.ctx, lineno=node.lineno)  # type: ignore[assignment]
            self.visit_Getitem(node, frame)  # type: ignore[arg-type]
        elif not isinstance(node.node, nodes.Name):
            super().visit_Getattr(node, frame)
        elif node.attr in _LOOP_NAMES:
            place = frame.symbols.ref(node.node.name)
            self._looked_up(f"{place}.{node.attr} if type({place}) is LoopContext", super().visit_Getattr, node, frame)
        elif node.attr in _DICT_NAMES:
            super().visit_Getattr(node, frame)
        else:
            self._looked_up(_in_dict(node.node, node.attr, frame), super().visit_Getattr, node, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        if isinstance(node.arg, nodes.Slice):
            ends = [end or nodes.Const(None) for end in (node.arg.start, node.arg.stop, node.arg.step)]
            self._arguments("environment.cut", (node.node, *ends), frame)
        elif isinstance(node.node, nodes.Name) and isinstance(node.arg, nodes.Const) and _is_short_text(node.arg.value):
            self._looked_up(_in_dict(node.node, node.arg.value, frame), super().visit_Getitem, node, frame)
        else:
            super().visit_Getitem(node, frame)

    def _looked_up(
        self, quick: str, otherwise: Callable[..., None], node: nodes.Expr, frame: jinja2.compiler.Frame
    ) -> None:
        """Write a look-up that asks nobody where it is one of the usual ones: ``quick`` says what and when."""
        self.write(f"({quick} else ")
        otherwise(node, frame)
        self.write(")")

    def visit_Dict(self, node: nodes.Dict, frame: jinja2.compiler.Frame) -> None:  # noqa: N802
        texts = [isinstance(item.key, nodes.Const) and isinstance(item.key.value, str) for item in node.items]
        if texts.count(False) > MAX_OTHER_KEYS:
            self.fail(f"a dict with more than {MAX_OTHER_KEYS} computed keys", node.lineno)
        self.write("{")
        for item, is_text in zip(node.items, texts, strict=True):
            if is_text:
                self.visit(item.key, frame)
            else:
                self._arguments("environment.weigh", (item.key,), frame)
            self.write(": ")
            self.visit(item.value, frame)
            self.write(", ")
        self.write("}")

    def _arguments(
        self, function: str, arguments: Sequence[Any], frame: jinja2.compiler.Frame, joined: bool = False
    ) -> None:
        """Write a call; ``joined``: its only argument is a tuple of nodes."""
        self.write(function + ("((" if joined else "("))
        for argument in arguments[0] if joined else arguments:
            self.visit(argument, frame)
            self.write(", ")
        self.write("))" if joined else ")")


def _is_short_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= _LONG


def _in_dict(name: nodes.Name, key: str, frame: jinja2.compiler.Frame) -> str:
    """Code that takes ``key`` out of a variable where that is a dict that has it."""
    place = frame.symbols.ref(name.name)
    return f"{place}[{key!r}] if type({place}) is dict and {key!r} in {place}"


class _NameFinder(_Generator):
    """Finds the names that a template looks up in what it is given, as ``jinja2.meta`` does, globals included."""

    def __init__(self, environment: "Sandbox") -> None:
        super().__init__(environment, "<names>", "<names>", optimized=False)
        self.names: set[str] = set()

    def write(self, x: str) -> None:
        """Nothing is written."""

    def enter_frame(self, frame: jinja2.compiler.Frame) -> None:
        super().enter_frame(frame)
        self.names.update(name for action, name in frame.symbols.loads.values() if name and action == "resolve")


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """The environment. It renders one template at a time: the budgets are those of the render that runs."""

    code_generator_class = _Generator

    def __init__(self, date: datetime.date) -> None:
        """Make an environment where ``strftime_now`` is the first second of ``date``."""
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            optimized=False,
            extensions=[_GenerationBlock, jinja2.ext.loopcontrols],
        )
        self.meter = Meter()
        self.filters = dict(_FILTERS)
        self.tests = dict(_TESTS)
        self.globals = {
            "range": _Function(jinja2.sandbox.safe_range),
            "dict": _DictFunction(self._make_dict, _Function(self._make_dict_of)),
            "namespace": _Function(self._make_namespace),
            "cycler": _Function(Cycler),
            "joiner": _Function(Joiner),
            "raise_exception": _Function(self._raise),
            "strftime_now": _Function(self._strftime),
        }
        self._now = datetime.datetime.combine(date, datetime.time())
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
        finder = _NameFinder(self)
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
        return _joined(parts, self.meter) if self._marking else "".join(parts)

    def text(self, value: Any) -> str:
        """``str(value)``, for what has a text that is the same each time."""
        kind = type(value)
        if kind is str or kind is Marked:
            return value  # type: ignore[no-any-return]
        if kind not in _SCALARS:
            self.pay_for_text(value)
        text = str(value)
        self.meter.made(len(text))
        return text

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
        return _marked(text, (*inner, (0, len(text), self._blocks_rendered)))

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
        for operand in operands:
            if type(operand) is not str:
                break
        else:
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
            return _joined((left, right), self.meter)
        if isinstance(left, list | tuple) and isinstance(right, list | tuple):
            self.meter.made(_ITEM * (len(left) + len(right)))
        return _bounded(left + right)

    def minus(self, left: Any, right: Any) -> Any:
        """``a - b``; of numbers only, for a difference of a dict's keys has an order of its own in each process."""
        if type(left) is int and type(right) is int:
            return _bounded(left - right)
        if not isinstance(left, int | float | Undefined) or not isinstance(right, int | float | Undefined):
            raise TypeError(f"unsupported operand type(s) for -: {type(left).__name__!r} and {type(right).__name__!r}")
        return _bounded(left - right)

    def times(self, left: Any, right: Any) -> Any:
        """``a * b``."""
        for items, count in ((left, right), (right, left)):
            if isinstance(items, str | list | tuple) and isinstance(count, int):
                self.meter.made(len(items) * max(count, 0) * (1 if isinstance(items, str) else _ITEM))
        return _bounded(left * right)

    def power(self, left: Any, right: Any) -> Any:
        """``a ** b``."""
        if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > 4096:
            raise LimitReached("it computes too large a number")
        return _bounded(left**right)

    def modulo(self, left: Any, right: Any) -> Any:
        """``a % b``, of numbers, or a format and its values."""
        return self.printf(left, right) if isinstance(left, str) else _bounded(left % right)

    def printf(self, pattern: str, values: Any) -> str:
        """``pattern % values``, with bounded widths."""
        self.meter.read(256 * len(pattern))
        length = len(pattern)
        whole = True
        for spec in _PRINTF.finditer(pattern):
            key, width, precision, kind = spec.group("key", "width", "precision", "kind")
            if kind == "(":
                raise LimitReached("a format has brackets within brackets")
            if "*" in (width, precision):
                items = values if isinstance(values, tuple) else (values,)
                _check_widths(str(abs(item)) for item in items if isinstance(item, int))
                length += 2 * MAX_WIDTH
            else:
                _check_widths((width, precision or ""))
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
                self.meter.read(_search_cost(len(container), len(item)))
        elif type(item) is str and (kind is list or kind is dict):
            # Only what is a text is read beyond its type, and only as far as this one goes.
            self.meter.read(len(container) * (_ITEM + len(item)))
        else:
            if kind in (_Lazy, LoopContext):
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
        elif kind not in _SCALARS:
            self.meter.read(self.size(value) * times)
        return value

    def cut(self, value: Any, start: Any, stop: Any, step: Any) -> Any:
        """``value[start:stop:step]``."""
        part = slice(start, stop, step)
        if isinstance(value, str | list | tuple):
            count = len(range(*part.indices(len(value))))
            self.meter.made(count if isinstance(value, str) else count * _ITEM)
        return value[part]

    def getattr(self, obj: Any, attribute: str) -> Any:
        """``obj.attribute``."""
        kind = type(obj)
        if kind is dict:
            if attribute not in _DICT_NAMES:
                try:
                    return obj[attribute]
                except KeyError:
                    return self.undefined(obj=obj, name=attribute)
            if attribute in _DICT_METHODS:
                return getattr(obj, attribute)
        elif kind is str:
            if attribute in _TEXT_METHODS:
                return getattr(obj, attribute)
        elif kind is _Namespace:
            attributes = object.__getattribute__(obj, "_Namespace__attrs")
            if attribute in attributes:
                return attributes[attribute]
        elif kind is LoopContext and attribute in _LOOP_NAMES:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """``obj[argument]``."""
        kind = type(argument)
        if kind is str:
            if len(argument) > _LONG:
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
        formatter = _Formatter(self, isinstance(text_pattern, Markup))
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

        return _Function(bounded_format)

    def call(self, context: jinja2.runtime.Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """``obj(...)``: only what is listed may be called."""
        meter = self.meter
        meter.step(_CALL_STEPS + 4 * len(args))
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
            guard = _METHODS.get((type(owner), obj.__name__))
            if guard is not None:
                return guard(self, obj, args, kwargs)
        elif kind is Macro or kind is LoopContext or kind is BlockReference:
            meter.enter()
            # A macro takes first whether autoescape is on where it is called.
            result = obj(context.eval_ctx, *args, **kwargs) if kind is Macro else obj(*args, **kwargs)
            meter.depth -= 1
            return result
        elif kind is _Function or kind is _DictFunction or kind is Joiner:
            return obj(*args, **kwargs)
        elif isinstance(obj, Undefined):
            return obj(*args, **kwargs)  # raises what is undefined
        raise SecurityError(f"a template may not call {_name(obj)}")

    # -- what things cost

    def pay_for_text(self, value: Any) -> None:
        """Pay for ``str(value)``; refuse what has no text, or one that is another each time (an address)."""
        kind = type(value)
        if kind not in _SCALARS:
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
            if kind in _SCALARS:
                total += _ITEM + _digits(value) if kind is int else _ITEM
                continue
            if isinstance(value, str):
                total += len(value) + _ITEM
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
            elif kind in _VIEWS:
                items = value if kind is not _ITEMS_VIEW else (part for pair in value for part in pair)
            elif isinstance(value, jinja2.utils.Namespace):
                attributes = object.__getattribute__(value, "_Namespace__attrs")
                items = (part for pair in attributes.items() for part in pair)
            elif kind is range:
                total += 64 if printed else len(value)
                continue
            elif printed and not isinstance(value, Undefined) and kind not in _PRINTABLE:
                raise LimitReached(f"it prints {_name(value)}, which has no text of its own")
            else:
                total += 64
                continue
            if depth > MAX_NESTING:
                raise LimitReached(f"it nests lists more than {MAX_NESTING} deep")
            before = len(waiting)
            waiting.extend((item, depth + 1) for item in items)
            total += _ITEM
            self.meter.step(4 * (1 + len(waiting) - before))
        return total

    def items(self, value: Any) -> Iterable[Any]:
        """``value`` for iterating over all of it, paid for."""
        if isinstance(value, str | list | tuple | dict | range) or type(value) in _VIEWS:
            self.meter.step(4 * len(value))
            return value  # type: ignore[no-any-return]
        return value if type(value) is _Lazy else _Lazy(self.meter, value)

    # -- functions of templates

    def _raise(self, message: Any) -> NoReturn:
        raise Raised(self.text(message))

    def _strftime(self, format: str) -> str:  # transformers' name
        for spec in _STRFTIME.finditer(format):
            _check_widths((spec.group("width"),))
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

    def _make_namespace(self, /, *args: Any, **kwargs: Any) -> _Namespace:
        return _Namespace(self._make_dict(*args, **kwargs))

    def _make_dict_of(self, keys: Any, value: Any = None, /) -> dict[Any, Any]:
        return self._few_other_keys({self.weigh(key): value for key in self.items(keys)})

    def _few_other_keys(self, result: dict[Any, Any]) -> dict[Any, Any]:
        if sum(1 for key in result if not isinstance(key, str)) > MAX_OTHER_KEYS:
            raise LimitReached(f"a dict has more than {MAX_OTHER_KEYS} keys that are not text")
        return result


_PRINTF = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?[#0\- +]*(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?[hlL]?(?P<kind>.)", re.DOTALL
)
_STRFTIME = re.compile(r"%[-_0^#+]*(?P<width>\d*)[EO]?(?P<kind>.?)", re.DOTALL)

_ITEMS_VIEW: type = type({}.items())
_VIEWS = frozenset({type({}.keys()), type({}.values()), _ITEMS_VIEW})
_PRINTABLE = frozenset({complex, Macro, LoopContext})
"""Types that print the same each time, beside data, lists, dicts and namespaces."""

# Look-ups that are safe, and so frequent that jinja2's way of finding that out is worth going round
_DICT_NAMES = frozenset(dir(dict))
_DICT_METHODS = frozenset({"get", "items", "keys", "values"})
_LOOP_NAMES = frozenset({"first", "index", "index0", "last", "length", "nextitem", "previtem", "revindex", "revindex0"})


def _name(value: Any) -> str:
    """What to call a value in a message: never its address."""
    if isinstance(value, MethodType | BuiltinMethodType):
        return f"{type(value.__self__).__name__}.{value.__name__}"
    return f"a value of type {'generator' if type(value) is _Lazy else type(value).__name__}"


def _bounded(number: Any) -> Any:
    if isinstance(number, int) and not -MAX_INTEGER < number < MAX_INTEGER:
        raise LimitReached("it computes too large a number")
    return number


def _search_cost(length: int, wanted: int, *, backwards: bool = False) -> int:
    """Characters read, in the worst case, in searching a text: backwards Python knows no better than trying."""
    return length * (1 + (wanted if backwards else min(wanted, 128)) // 4)


# -- methods: each guard pays, then calls

_Guard = Callable[[Sandbox, Any, tuple[Any, ...], dict[str, Any]], Any]


def _pay_for_arguments(sandbox: Sandbox, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    for value in args:
        sandbox.weigh(value)
    for value in kwargs.values():
        sandbox.weigh(value)


def _free(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _pay_for_arguments(sandbox, args, kwargs)
    return method(*args, **kwargs)


def _reads(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    sandbox.weigh(method.__self__)
    return _free(sandbox, method, args, kwargs)


def _copies(sandbox: Sandbox, method: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    owner = method.__self__
    sandbox.meter.made(len(owner) if isinstance(owner, str) else _ITEM * len(owner))
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
            sandbox.meter.read(_search_cost(len(text), len(wanted), backwards=backwards))
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
        _pay_for_replacing(sandbox, method.__self__, *args[:3])
    return method(*args, **kwargs)


def _pay_for_replacing(sandbox: Sandbox, text: str, old: str, new: str, count: Any = -1) -> None:
    sandbox.meter.read(2 * _search_cost(len(text), len(old)))
    times = text.count(old)
    if isinstance(count, int) and 0 <= count < times:
        times = count
    # Markup escapes what it puts in: each character may become six.
    grown = len(new) * (6 if isinstance(text, Markup) else 1) - len(old)
    sandbox.meter.made(max(len(text), len(text) + times * grown))


_TEXT_METHODS: dict[str, _Guard] = {
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

_METHODS: dict[tuple[type, str], _Guard] = {
    **{(kind, name): guard for kind in (str, Markup, Marked) for name, guard in _TEXT_METHODS.items()},
    **{(dict, name): _free for name in _DICT_METHODS},
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


# -- filters: each pays, then does what jinja2's does, mostly by calling it

_SPEND = "packtool-spend"
"""A filter that no template can write: it pays for one item that the condition of a loop is asked about."""


_SPREAD = "packtool-spread"
"""Another: it pays for the items behind a ``*`` in a call, before they are spread."""


@pass_environment
def _spread(sandbox: Sandbox, value: Any) -> Any:
    return sandbox.items(value)


@pass_environment
def _spend(sandbox: Sandbox, value: Any, steps: int) -> Any:
    sandbox.meter.step(steps)
    return value


def _text_filter(function: Callable[..., Any], read: int = 1, grows: int = 1) -> Callable[..., Any]:
    """A filter of one text that is linear in it, at ``read`` and ``grows`` times the price of a copy."""

    @pass_environment
    def bounded(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
        text = sandbox.soft_text(value)
        _pay_for_arguments(sandbox, args, kwargs)
        sandbox.meter.read(read * len(text))
        sandbox.meter.made(grows * len(text))
        return function(text, *args, **kwargs)

    return bounded


def _number_filter(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that gives a number, read from a text at times."""

    @pass_environment
    def bounded(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
        sandbox.weigh(value, 16)
        _pay_for_arguments(sandbox, args, kwargs)
        return _bounded(function(value, *args, **kwargs))

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
        _pay_for_replacing(sandbox, str(text), str(old), str(new), limit)
        return str(text).replace(str(old), str(new), limit)
    sandbox.pay_for_escape(text)
    _pay_for_replacing(sandbox, Markup(escape(text)), old, new, limit)
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
    _pay_for_arguments(sandbox, args, kwargs)
    sandbox.meter.made(len(s) * (1 if isinstance(s, str) else _ITEM))
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
    _pay_for_arguments(sandbox, args, kwargs)
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
            sandbox.meter.made(4 * size + (size // _ITEM + 1) * _height(x) * max(width, 0))
        if separators is not None:
            sandbox.meter.made((size // _ITEM + 1) * sum(len(part) for part in separators))
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
    return _bounded(jinja2.filters.do_round(value, precision, method))


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
        return _Lazy(sandbox.meter, reversed(value), value)
    except TypeError:
        if not isinstance(value, Iterable):
            raise FilterArgumentError("argument must be iterable") from None
        return list(sandbox.items(value))[::-1]


@pass_environment
def _items(sandbox: Sandbox, value: Any) -> _Lazy:
    return _Lazy(sandbox.meter, jinja2.filters.do_items(value))


@pass_environment
def _batch(sandbox: Sandbox, value: Any, linecount: int, fill_with: Any = None) -> _Lazy:
    if fill_with is not None:
        sandbox.meter.step(4 * linecount)
    return _Lazy(sandbox.meter, jinja2.filters.do_batch(sandbox.items(value), linecount, fill_with), value)


@pass_environment
def _slice(sandbox: Sandbox, value: Any, slices: int, fill_with: Any = None) -> _Lazy:
    sandbox.meter.step(_CALL_STEPS * max(slices, 0))
    return _Lazy(sandbox.meter, jinja2.filters.sync_do_slice(sandbox.items(value), slices, fill_with), value)  # type: ignore[arg-type]


def _pay_for_attribute(sandbox: Sandbox, attribute: Any, items: int) -> None:
    """Pay for looking up a dotted path on each of some items."""
    if isinstance(attribute, str):
        sandbox.meter.step(3 * items * (1 + len(attribute)))


def _pay_for_sorting(sandbox: Sandbox, items: Sequence[Any], attribute: Any = None) -> None:
    rounds = len(items).bit_length()
    sandbox.weigh(items, 2 * rounds)
    sandbox.meter.step(len(items) * (_CALL_STEPS + rounds))
    _pay_for_attribute(sandbox, attribute, len(items))


def _ordering_filter(function: Callable[..., Any], place: int) -> Callable[..., Any]:
    """A filter that compares all items; ``place``: where its attribute stands among the arguments."""

    @pass_environment
    def bounded(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
        items = list(sandbox.items(value))
        _pay_for_arguments(sandbox, args, kwargs)
        _pay_for_sorting(sandbox, items, args[place] if len(args) > place else kwargs.get("attribute"))
        return function(sandbox, items, *args, **kwargs)

    return bounded


@pass_environment
def _dictsort(sandbox: Sandbox, value: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(value, dict):
        _pay_for_sorting(sandbox, list(value.items()))
    _pay_for_arguments(sandbox, args, kwargs)
    return jinja2.filters.do_dictsort(value, *args, **kwargs)


@pass_environment
def _unique(sandbox: Sandbox, value: Any, case_sensitive: bool = False, attribute: Any = None) -> _Lazy:
    items = list(sandbox.items(value))
    _pay_for_sorting(sandbox, items, attribute)
    others = sum(1 for item in items if attribute is not None or not isinstance(item, str))
    sandbox.meter.read(16 * others**2)  # they may all collide
    return _Lazy(sandbox.meter, jinja2.filters.sync_do_unique(sandbox, items, case_sensitive, attribute), value)


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
    def bounded(context: jinja2.runtime.Context, value: Any, *args: Any, **kwargs: Any) -> _Lazy:
        sandbox: Any = context.environment
        # These filters ask whether there is anything at all before they ask what.
        items = sandbox.items(value) if value else ()
        # A dotted path is looked up part by part on each item.
        path = 3 * sum(len(part) for part in (*args, *kwargs.values()) if isinstance(part, str))
        return _Lazy(sandbox.meter, function(context, items, *args, **kwargs), value, path)

    return bounded


_FILTERS: dict[str, Callable[..., Any]] = {
    _SPEND: _spend,
    _SPREAD: _spread,
    "abs": abs,
    "attr": _attr,
    "batch": _batch,
    "capitalize": _text_filter(jinja2.filters.do_capitalize),
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
    "lower": _text_filter(jinja2.filters.do_lower),
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
    "title": _text_filter(jinja2.filters.do_title, read=64, grows=4),
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
    "unique": _unique,
    "upper": _text_filter(jinja2.filters.do_upper),
    "urlencode": _urlencode,
    "urlize": _urlize,
    "wordcount": _text_filter(jinja2.filters.do_wordcount, read=64, grows=8),
    "wordwrap": _wordwrap,
    "xmlattr": _xmlattr,
}
"""jinja2's filters, but ``random``, which gives another text each time."""


# -- tests


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


_TESTS: dict[str, Any] = {
    **jinja2.tests.TESTS,
    "divisibleby": _is_divisible,
    "even": _remainder(0),
    "odd": _remainder(1),
    "in": _is_in,
    "lower": _text_filter(str.islower),
    "upper": _text_filter(str.isupper),
    **dict.fromkeys(("==", "eq", "equalto"), _comparison(operator.eq)),
    **dict.fromkeys(("!=", "ne"), _comparison(operator.ne)),
    **dict.fromkeys((">", "gt", "greaterthan"), _comparison(operator.gt)),
    **dict.fromkeys((">=", "ge"), _comparison(operator.ge)),
    **dict.fromkeys(("<", "lt", "lessthan"), _comparison(operator.lt)),
    **dict.fromkeys(("<=", "le"), _comparison(operator.le)),
}
