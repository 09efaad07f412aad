"""Compiles a template to Python that pays for what it does.

Takes a syntax tree and gives code. The code charges itself for each turn of a loop and each call of a macro, by the
number of nodes in its body; operators, comparisons, slices, literals' keys, ``~`` and printing, which in plain jinja2
run without asking anybody, become calls of the environment's methods, which know what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import jinja2.compiler
import jinja2.ext
import jinja2.nodes as nodes
import jinja2.parser

from packtool.rendering.sandbox.meter import LONG, MAX_OTHER_KEYS
from packtool.rendering.sandbox.values import DICT_NAMES, LOOP_NAMES

if TYPE_CHECKING:
    from packtool.rendering.sandbox.environment import Sandbox

SPEND = "packtool-spend"
"""A filter that no template can write: it pays for one item that the condition of a loop is asked about."""


SPREAD = "packtool-spread"
"""Another: it pays for the items behind a ``*`` in a call, before they are spread."""


class GenerationBlock(jinja2.ext.Extension):
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
        return not isinstance(node.value, str) or len(node.value) <= LONG
    if isinstance(node, nodes.List | nodes.Tuple):
        return len(node.items) <= 32 and all(isinstance(item, nodes.Const) and _is_small(item) for item in node.items)
    return False


class Generator(jinja2.compiler.CodeGenerator):
    """Compiles a template to Python that pays for what it does."""

    def visit_Template(self, node: nodes.Template, frame: jinja2.compiler.Frame | None = None) -> None:  # noqa: N802
        # blockvisit gets a bare list of nodes, so its price is looked up by the list's identity.
        self._prices: dict[int, int] = {}
        for loop in node.find_all(nodes.For):
            self._prices[id(loop.body)] = 4 + _cost([loop.target, *loop.body])
            if loop.test is not None:
                price = nodes.Const(2 + _cost([loop.test]))
                spend = nodes.Filter(nodes.Const(True), SPEND, [price], [], None, None, lineno=loop.lineno)
                loop.test = nodes.And(spend, loop.test, lineno=loop.lineno)
        macros: Iterable[Any] = node.find_all((nodes.Macro, nodes.CallBlock))
        for macro in macros:
            self._prices[id(macro.body)] = 4 + _cost([*macro.body, *macro.args, *macro.defaults])
        for block in node.find_all(nodes.Block):
            self._prices[id(block.body)] = 4 + _cost(block.body)
        calls: Iterable[Any] = node.find_all((nodes.Call, nodes.Filter, nodes.Test))
        for call in calls:
            if call.dyn_args is not None:
                call.dyn_args = nodes.Filter(call.dyn_args, SPREAD, [], [], None, None, lineno=call.lineno)
        super().visit_Template(node, frame)

    def write_commons(self) -> None:
        super().write_commons()
        self.writeline("meter = environment.meter")
        self.writeline("text = environment.printed")

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
        if len(node.attr) > LONG:  # looked up as an item: a long name is paid for there
            node = nodes.Getitem(node.node, nodes.Const(node.attr), node.ctx, lineno=node.lineno)  # type: ignore[assignment]
            self.visit_Getitem(node, frame)  # type: ignore[arg-type]
        elif not isinstance(node.node, nodes.Name):
            super().visit_Getattr(node, frame)
        elif node.attr in LOOP_NAMES:
            place = frame.symbols.ref(node.node.name)
            self._looked_up(f"{place}.{node.attr} if type({place}) is LoopContext", super().visit_Getattr, node, frame)
        elif node.attr in DICT_NAMES:
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
    return isinstance(value, str) and len(value) <= LONG


def _in_dict(name: nodes.Name, key: str, frame: jinja2.compiler.Frame) -> str:
    """Code that takes ``key`` out of a variable where that is a dict that has it."""
    place = frame.symbols.ref(name.name)
    return f"{place}[{key!r}] if type({place}) is dict and {key!r} in {place}"


class NameFinder(Generator):
    """Finds the names that a template looks up in what it is given, as ``jinja2.meta`` does, globals included."""

    def __init__(self, environment: Sandbox) -> None:
        super().__init__(environment, "<names>", "<names>", optimized=False)
        self.names: set[str] = set()

    def write(self, x: str) -> None:
        """Nothing is written."""

    def enter_frame(self, frame: jinja2.compiler.Frame) -> None:
        super().enter_frame(frame)
        self.names.update(name for action, name in frame.symbols.loads.values() if name and action == "resolve")
