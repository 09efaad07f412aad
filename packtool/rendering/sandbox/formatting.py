"""Formats that a template writes: ``str.format``, ``%`` and ``strftime``, their widths bounded."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jinja2.sandbox
from markupsafe import Markup, escape

from packtool.rendering.sandbox.meter import check_widths

if TYPE_CHECKING:
    from packtool.rendering.sandbox.environment import Sandbox


class Formatter(jinja2.sandbox.SandboxedFormatter):
    """``str.format`` whose widths are bounded and whose fields are paid for."""

    def __init__(self, environment: Sandbox, escaping: bool) -> None:
        super().__init__(environment)
        self._sandbox = environment
        self._escaping = escaping

    def convert_field(self, value: Any, conversion: Any) -> Any:
        if conversion is None:
            return value
        self._sandbox.pay_for_text(value)
        return super().convert_field(value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        check_widths(re.findall(r"\d+", format_spec))
        self._sandbox.pay_for_text(value)
        if self._escaping and isinstance(value, Markup) and not format_spec:
            return str(value)
        text = format(value, format_spec)
        if self._escaping:
            self._sandbox.pay_for_escape(text)
            text = str(escape(text))
        self._sandbox.meter.made(len(text))
        return text


PRINTF = re.compile(
    r"%(?:\((?P<key>[^()]*)\))?[#0\- +]*(?P<width>\*|\d*)(?:\.(?P<precision>\*|\d*))?[hlL]?(?P<kind>.)", re.DOTALL
)
STRFTIME = re.compile(r"%[-_0^#+]*(?P<width>\d*)[EO]?(?P<kind>.?)", re.DOTALL)
