"""A jinja2 environment for templates that nobody has read: it takes a template and plain data and gives text.

It has the functions, filters, tags and white-space rules that ``transformers`` gives chat templates, and two
things that those lack. What a template may call is listed here, all else is refused. And all that it does is paid
for, before it is done, from two budgets that are counts (``Meter``), so a render ends, in bounded memory, at the
same place on every machine. It knows neither chat nor records.

The flow: ``plain`` weighs the data, ``compiler`` makes code that pays, ``environment`` runs it, and ``methods``,
``filters`` and ``conditions`` say what each thing that a template may call costs; ``meter`` keeps the account. A
``Program`` is a template compiled once and run often.
"""

from packtool.rendering.sandbox.environment import Raised, Sandbox
from packtool.rendering.sandbox.marks import Marked
from packtool.rendering.sandbox.meter import MAX_NESTING, MAX_SOURCE, LimitReached, Meter
from packtool.rendering.sandbox.plain import NotPlain, admit, weigh_plain
from packtool.rendering.sandbox.program import Program, words

__all__ = [
    "MAX_NESTING",
    "MAX_SOURCE",
    "LimitReached",
    "Marked",
    "Meter",
    "NotPlain",
    "Program",
    "Raised",
    "Sandbox",
    "admit",
    "weigh_plain",
    "words",
]
