"""Templates that try to reach Python, to run or to print without end: each is refused, and each time in the same words."""

import copy
import datetime
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jinja2
import jinja2.filters
import jinja2.tests
import pytest
from transformers.utils import chat_template_utils

from packtool.rendering import sandbox
from packtool.rendering.chat_template import ChatTemplate, TemplateError
from packtool.rendering.sandbox import Marked, Meter, NotPlain, Sandbox, weigh_plain

# ruff: noqa: E501

MESSAGES = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yo"}]

ESCAPES = {
    "class": "{{ ''.__class__.__mro__ }}",
    "class by attr": "{{ (''|attr('__class__')).__mro__ }}",
    "class by item": "{{ ''['__class__']['__mro__'] }}",
    "class by map": "{{ ([''] | map(attribute='__class__') | list)[0].mro() }}",
    "class by format": "{{ '{0.__class__.__mro__}'.format('') }}",
    "class by format_map": "{{ '{x.__class__.__mro__}'.format_map({'x': ''}) }}",
    "format by attr": "{{ (''.join(['{0.__class__', '.__mro__}'])|attr('format'))('') }}",
    "format stored": "{% set ns = namespace(f='{0.__class__.mro}'.format) %}{{ ns.f('') }}",
    "format by map": "{{ (['{0.__class__.mro}']|map(attribute='format')|list)[0]('') }}",
    "globals of macro": "{% macro m() %}{% endmacro %}{{ m.__globals__.x }}",
    "func of macro": "{% macro m() %}{% endmacro %}{{ m._func.x }}",
    "environment of macro": "{% macro m() %}{% endmacro %}{{ m._environment.x }}",
    "call of macro": "{% macro m() %}{% endmacro %}{{ m.__call__() }}",
    "init of cycler": "{{ cycler.__init__.__globals__ }}",
    "init of joiner": "{{ joiner.__init__.__globals__.os }}",
    "init of namespace": "{{ namespace.__init__.__globals__.os }}",
    "mro of a class": "{{ cycler.mro() }}",
    "range's class": "{{ range.__class__.x }}",
    "a function's inside": "{{ raise_exception._function.x }}",
    "self": "{{ self._TemplateReference__context.x }}",
    "self's class": "{{ self.__class__.x }}",
    "loop's inside": "{% for x in [1] %}{{ loop._iterable.x }}{% endfor %}",
    "loop's class": "{% for x in [1] %}{{ loop.__class__.__init__.x }}{% endfor %}",
    "undefined's inside": "{{ x._undefined_exception.x }}",
    "namespace with a dunder": "{{ namespace(__class__=1) }}",
    "namespace with a dunder from a dict": "{{ namespace({'__html__': 1}) }}",
    "namespace with a dunder set": "{% set ns = namespace() %}{% set ns.__html__ = 1 %}",
    "generator's frame": "{{ (messages|map('upper')).gi_frame.f_globals }}",
    "dict's class": "{{ dict.__class__.x }}",
    "fromkeys' self": "{{ dict.fromkeys.__self__.x }}",
    "translate": "{{ 'aaa'.translate({97: 'b'}) }}",
    "encode": "{{ 'aaa'.encode() }}",
    "to_bytes": "{{ (1).to_bytes(10, 'big') }}",
    "mapping of a view": "{{ {'a': 1}.keys().mapping.copy() }}",
    "changing a list": "{{ messages.append(1) }}",
    "changing a dict": "{{ messages[0].update({'role': 'x'}) }}",
    "popping": "{{ messages.pop() }}",
    "assigning to data": "{% set messages.x = 1 %}",
    "include": "{% include '/etc/passwd' %}",
    "include, missing ignored": "{% include 'x' ignore missing %}",
    "import": "{% import 'os' as os %}",
    "from import": "{% from 'os' import x %}",
    "extends": "{% extends '/etc/passwd' %}",
    "calling data": "{{ messages() }}",
    "calling a text": "{{ 'a'() }}",
    "random": "{{ messages|map('random')|list }}",
    "lipsum": "{{ lipsum() }}",
}
"""Reaching for Python, the disk, or the data of other records."""

ENDLESS = {
    "nested ranges": "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
    "nested ranges that are filtered": "{% for a in range(100000) %}{% for b in range(100000) if false %}{% endfor %}{% endfor %}",
    "nested ranges that print": "{% for a in range(100000) %}{% for b in range(100000) %}{{ messages[0].content.upper() }}{% endfor %}{% endfor %}",
    "straight code in a loop": "{% for a in range(100000) %}" + "{{ messages[0].role.x }}" * 5000 + "{% endfor %}",
    "a condition's code in a loop": "{% for a in range(100000) if "
    + " or ".join(["messages[0].nothing"] * 90)
    + " %}{% endfor %}",
    "the same, recursive": "{% for a in range(100000) if "
    + " or ".join(["messages[0].nothing"] * 90)
    + " recursive %}{% endfor %}",
    "a macro's code in a loop": "{% macro m() %}"
    + "{{ messages[0].role }}" * 5000
    + "{% endmacro %}{% for a in range(100000) %}{{ m() }}{% endfor %}",
    "a macro's defaults": "{% macro m("
    + ", ".join(f"a{i}=messages[0].role" for i in range(200))
    + ") %}{% endmacro %}{% for a in range(100000) %}{{ m() }}{% endfor %}",
    "a block's code": "{% block b %}"
    + "{{ messages[0].role }}" * 5000
    + "{% endblock %}{% for a in range(100000) %}{% set x = self.b() %}{% endfor %}",
    "macro without end": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "macros without end": "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}",
    "call block without end": "{% macro m() %}{% if caller %}{% endif %}{% call m() %}x{% endcall %}{% endmacro %}{{ m() }}",
    "block without end": "{% block b %}{{ self.b() }}{% endblock %}",
    "recursive loop without end": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "generation without end": "{% macro m() %}{% generation %}{{ m() }}{% endgeneration %}{% endmacro %}{{ m() }}",
    "looking up long keys": "{% set d = {'a' * 20000000: 1} %}{% set x = 'a' * 20000000 %}{% for i in range(100000) %}{% for j in range(100000) %}{{ d[x] }}{% endfor %}{% endfor %}",
    "looking up long names": "{% set d = {'a' * 100000: 1} %}{% for i in range(100000) %}{% for j in range(100000) %}{{ d."
    + "a" * 100000
    + " }}{% endfor %}{% endfor %}",
    "asking for long names": "{% set d = {'a' * 20000000: 1} %}{% set x = 'a' * 20000000 %}{% for i in range(100000) %}{% for j in range(100000) %}{{ d|attr(x) }}{% endfor %}{% endfor %}",
    "macros made in a loop": "{% for i in range(100000) %}{% for j in range(100000) %}"
    + "{% macro m() %}{% endmacro %}" * 100
    + "{% endfor %}{% endfor %}",
    "call blocks in a loop": "{% macro m() %}{{ caller() }}{% endmacro %}{% for i in range(100000) %}{% for j in range(100000) %}{% call m() %}{% endcall %}{% endfor %}{% endfor %}",
    "scoped blocks in a loop": "".join("{% set v" + str(i) + " = 1 %}" for i in range(3000))
    + "{% for i in range(100000) %}{% block b scoped %}{% endblock %}{% endfor %}",
    "marks by the million": "{% set ns = namespace(x='') %}{% for i in range(100000) %}{% for j in range(100000) %}{% set y %}{% generation %}a{% endgeneration %}{% endset %}{% set ns.x = ns.x + y %}{% endfor %}{% endfor %}",
    "large numbers": "{% for a in range(100000) %}{% for b in range(100000) %}{{ 10 ** 600 }}{% endfor %}{% endfor %}",
    "large numbers in lists": "{% set x = [10 ** 600] * 100000 %}{% for b in range(100000) %}{% set y = x|string %}{% endfor %}",
    "namespaces of long lists": "{% set x = range(100000)|list %}{% for b in x %}{% set y = namespace(x) %}{% endfor %}",
    "a namespace of tuples in tuples": "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ namespace([(ns.x, 1)]) }}",
    "2^n calls": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "2^n loops": "{% for x in [60] recursive %}{% if x %}{{ loop([x - 1, x - 1]) }}{% endif %}{% endfor %}",
    "ranges too big": "{{ range(10000000)|list }}",
    "lists of ranges": "{% set ns = namespace(x=[]) %}{% for i in range(10000) %}{% set ns.x = [ns.x, range(100000)|list] %}{% endfor %}",
    "lists in lists": "{% set ns = namespace(x=[]) %}{% for i in range(1000000//10) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "tuples in tuples, hashed": "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {ns.x: 1} }}",
    "tuples in tuples, looked up": "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {'a': 1}[ns.x] }}",
    "tuples in tuples, got": "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ {'a': 1}.get(ns.x) }}",
    "tuples in tuples, in": "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ ns.x in {'a': 1} }}",
    "tuples in tuples, unique": "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ [ns.x, ns.x]|unique|list }}",
    "tuples in tuples, dict": "{% set ns = namespace(x=()) %}{% for i in range(100000) %}{% set ns.x = (ns.x,) %}{% endfor %}{{ dict([[ns.x, 1]]) }}",
    "2^n hash": "{% set ns = namespace(x=(1,)) %}{% for i in range(60) %}{% set ns.x = (ns.x, ns.x) %}{% endfor %}{% set d = {ns.x: 1} %}",
    "2^n printed": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
    "2^n as JSON": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x|tojson }}",
    "2^n compared": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
    "2^n compared by a test": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x is eq(ns.y) }}",
    "2^n in": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ ns.x in [ns.y] }}",
    "2^n sorted": "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ [ns.x, ns.y]|sort }}",
    "2^n changed": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{{ loop.changed(ns.x) }}{% endfor %}",
    "2^n formatted": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ '%s' % (ns.x,) }}",
    "2^n formatted by braces": "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ '{}'.format(ns.x) }}",
    "2^n in namespaces": "{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set n2 = namespace(a=ns.x, b=ns.x) %}{% set ns.x = n2 %}{% endfor %}{{ ns.x }}",
    "a namespace in itself": "{% set ns = namespace() %}{% set ns.x = [ns, ns] %}{{ ns }}",
    "lazy in lazy": "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x|map('string') %}{% endfor %}{{ ns.x|list }}",
    "colliding keys": "{{ dict.fromkeys(range(100000)) }}",
    "colliding pairs": "{{ dict(range(100000)|batch(2)) }}",
    "colliding and unique": "{% set ns = namespace(x=[]) %}{% for a in range(90000)|batch(2) %}{% endfor %}{{ range(100000)|unique|list }}",
    "spreading": "{% set x = '中' * 60000000 %}{{ namespace(*x) }}",
    "spreading again and again": "{% macro m() %}{{ varargs|length }}{% endmacro %}{% set x = range(100000)|list %}{% for i in x %}{% set y = m(*x) %}{% endfor %}",
    "spreading into a filter": "{% set x = '中' * 60000000 %}{{ 'a'|format(*x) }}",
    "long paths": "{% for i in range(100000) %}{{ range(100000)|map(attribute='"
    + ".".join(["real"] * 1000)
    + "')|list|length }}{% endfor %}",
    "comparing long texts": "{% set x = 'a' * 20000000 %}{% set y = 'a' * 20000000 %}{% for i in range(100000) %}{{ x == y }}{% endfor %}",
    "searching long texts": "{% set x = 'a' * 20000000 %}{% for i in range(100000) %}{{ 'b' in x }}{% endfor %}",
    "searching badly": "{% set x = 'a' * 20000000 %}{% set y = 'a' * 49 + 'b' + 'a' * 49 %}{% for i in range(100000) %}{{ y in x }}{% endfor %}",
    "searching backwards": "{% set x = 'a' * 20000000 %}{% set y = 'b' + 'a' * 10000000 %}{{ x.rfind(y) }}",
    "splitting backwards": "{% set x = 'a' * 20000000 %}{% set y = 'b' + 'a' * 10000000 %}{{ x.rsplit(y) }}",
    "counting": "{% set x = 'a' * 20000000 %}{% for i in range(100000) %}{{ x.count('b') }}{% endfor %}",
    "trimming": "{% set x = 'a' * 20000000 %}{% set y = 'b' * 20000000 ~ 'a' %}{{ x.strip(y) }}",
    "trimming by filter": "{% set x = 'a' * 20000000 %}{% set y = 'b' * 20000000 ~ 'a' %}{{ x|trim(y) }}",
    "wrapping a long word": "{{ ('a' * 1000000)|wordwrap(1) }}",
    "wrapping words": "{{ (('a' * 900 ~ ' ') * 20000)|wordwrap(1) }}",
    "linking": "{{ ('(' * 1000000)|urlize }}",
    "printing prettily": "{% set ns = namespace(x=[]) %}{% for i in range(90) %}{% set ns.x = [ns.x, 'a' * 100000] %}{% endfor %}{{ ns.x|pprint }}",
    "tags": "{{ ('<!--' * 5000000)|striptags }}",
    "sorting texts": "{% set x = 'a' * 20000000 %}{{ [x ~ 1, x ~ 2, x ~ 3, x ~ 4, x ~ 5]|sort }}",
    "sorting numbers": "{% for i in range(100000) %}{{ range(100000)|sort|length }}{% endfor %}",
    "summing lists": "{{ (range(100000)|batch(1)|list)|sum(start=[])|length }}",
    "matching formats": "{% set x = '%%' * 100000 %}{% for i in range(100000) %}{% set y = x|format() %}{% endfor %}",
    "rounding": "{{ 1|round(-1000000000) }}",
    "rounding up": "{{ 1|round(1000000000, 'ceil') }}",
    "powers": "{{ 10 ** (10 ** 10) }}",
    "powers step by step": "{% set ns = namespace(x=3) %}{% for i in range(100) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "sums step by step": "{% set ns = namespace(x=3) %}{% for i in range(100000) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "numbers from text": "{{ ('f' * 10000000)|int(0, 16) }}",
    "shifting by format": "{{ ('%0' ~ '1000000000d') % 5 }}",
}
"""Running without end, or nearly so."""

BOMBS = {
    "multiplying": "{{ 'a' * 10 ** 10 }}",
    "multiplying the other way": "{{ 10 ** 10 * 'a' }}",
    "multiplying lists": "{{ [1] * 10 ** 10 }}",
    "multiplying twice": "{{ 'a' * 10000000 * 10000000 }}",
    "doubling by +": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by + +": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x + ns.x %}{% endfor %}",
    "doubling lists": "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by ~": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubling by join": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x]|join %}{% endfor %}",
    "doubling by a separator": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = [1, 2, 3]|join(ns.x) %}{% endfor %}",
    "doubling by .join": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x.join(['a', 'b', 'c']) %}{% endfor %}",
    "doubling by replace": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x.replace('a', 'aa') %}{% endfor %}",
    "squaring by replace": "{% set ns = namespace(x='aaaa') %}{% for i in range(100) %}{% set ns.x = ns.x|replace('a', ns.x) %}{% endfor %}",
    "replacing nothing": "{% set x = 'a' * 20000000 %}{{ x|replace('', 'aaaaaaaaaa') }}",
    "doubling by set blocks": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling by macros": "{% macro m(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = m(ns.x) %}{% endfor %}",
    "doubling by call blocks": "{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set y %}{% call m() %}{{ ns.x }}{% endcall %}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling by filter blocks": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set y %}{% filter trim %}{{ ns.x }}{{ ns.x }}{% endfilter %}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling by generation blocks": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set y %}{% generation %}{{ ns.x }}{{ ns.x }}{% endgeneration %}{% endset %}{% set ns.x = y %}{% endfor %}",
    "doubling by %": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = '%s%s' % (ns.x, ns.x) %}{% endfor %}",
    "doubling by % with keys": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = '%(a)s%(a)s' % {'a': ns.x} %}{% endfor %}",
    "doubling by % with keys and without": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = '%s%(a)s' % {'a': 1, 'b': ns.x ~ ns.x} %}{% endfor %}",
    "doubling by format": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = '{0}{0}'.format(ns.x) %}{% endfor %}",
    "doubling by format_map": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = '{a}{a}'.format_map({'a': ns.x}) %}{% endfor %}",
    "doubling by the format filter": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = '%s%s'|format(ns.x, ns.x) %}{% endfor %}",
    "doubling by indent": "{% set ns = namespace(x='a\nb') %}{% for i in range(100) %}{% set ns.x = ns.x|indent(ns.x, true, true) %}{% endfor %}",
    "doubling by truncate": "{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ('a' ~ ns.x * 3)|truncate(ns.x|length + 1, true, ns.x, 0) ~ ns.x %}{% endfor %}",
    "doubling by wordwrap": "{% set ns = namespace(x='a b c d') %}{% for i in range(100) %}{% set ns.x = ns.x|wordwrap(1, wrapstring=ns.x) %}{% endfor %}",
    "doubling by escape": "{% set ns = namespace(x='&') %}{% for i in range(100) %}{% set ns.x = ns.x|string|escape|forceescape|string %}{% set ns.x = [ns.x, '']|join('') ~ ns.x %}{% endfor %}",
    "doubling by JSON": "{% set ns = namespace(x='\\\\') %}{% for i in range(100) %}{% set ns.x = ns.x|tojson %}{% endfor %}",
    "doubling by text of lists": "{% set ns = namespace(x='\\\\') %}{% for i in range(100) %}{% set ns.x = [ns.x]|string %}{% endfor %}",
    "doubling by markup": "{% set ns = namespace(x='ab'|safe) %}{% for i in range(100) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubling by autoescape": "{% autoescape true %}{% set ns = namespace(x='ab') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endautoescape %}",
    "doubling by URLs": "{% set ns = namespace(x='é') %}{% for i in range(100) %}{% set ns.x = ns.x|urlencode ~ ns.x %}{% endfor %}",
    "doubling by attributes": "{% set ns = namespace(x='&') %}{% for i in range(100) %}{% set ns.x = {'a': ns.x, 'b': ns.x}|xmlattr %}{% endfor %}",
    "a wide number": "{{ '%1000000000d' % 5 }}",
    "a number as wide as told": "{{ '%*d' % (1000000000, 5) }}",
    "a precise number": "{{ '%.1000000000f' % 5 }}",
    "a precise number as told": "{{ '%.*f' % (1000000000, 5) }}",
    "brackets within brackets": "{{ '%((a))1000000000d' % {'(a)': 1} }}",
    "a wide test": "{{ '%1000000000d' is divisibleby(5) }}",
    "a wide odd test": "{{ '%02000000000d' is odd }}",
    "a wide even test": "{{ '%1000000000d' is even }}",
    "wide by map": "{{ ['%1000000000d']|map('format', 5)|list }}",
    "wide by braces": "{{ '{:>1000000000}'.format(5) }}",
    "wide within braces": "{{ '{:>{w}}'.format(5, w=1000000000) }}",
    "precise by braces": "{{ '{:.1000000000f}'.format(5) }}",
    "wide by attr": "{{ ('{:>1000000000}'|attr('format'))(5) }}",
    "a wide year": "{{ strftime_now('%1000000000Y') }}",
    "seconds since the epoch": "{{ strftime_now('%s') }}",
    "a wide text": "{{ 'a'.ljust(10000000000) }}",
    "a wide text, right": "{{ 'a'.rjust(10000000000) }}",
    "a wide text, centre": "{{ 'a'.center(10000000000) }}",
    "a wide text, zeros": "{{ 'a'.zfill(10000000000) }}",
    "a wide text by filter": "{{ 'a'|center(10000000000) }}",
    "wide tabs": "{{ '\t'.expandtabs(10000000000) }}",
    "wide tabs by name": "{{ '\t'.expandtabs(tabsize=10000000000) }}",
    "a wide indent": "{{ 'a\nb'|indent(10000000000) }}",
    "a wide JSON indent": "{{ []|tojson(indent=10000000000) }}",
    "a deep JSON indent": "{% set ns = namespace(x=[]) %}{% for i in range(90) %}{% set ns.x = [ns.x] + range(1000)|list %}{% endfor %}{{ ns.x|tojson(indent=1000) }}",
    "wide JSON separators": "{{ (range(100000)|list)|tojson(separators=('a' * 1000000, ':')) }}",
    "many slices": "{{ [1]|slice(10000000000)|list }}",
    "a wide batch": "{{ [1]|batch(10000000000, 0)|list }}",
    "slices of slices": "{% set x = 'a' * 10000000 %}{% for i in range(100000) %}{% set y = x[1:] %}{% endfor %}",
    "copies of lists": "{% set x = range(100000)|list %}{% set ns = namespace(x=[]) %}{% for i in x %}{% set ns.x = [ns.x, x.copy()] %}{% endfor %}",
    "much output": "{% set x = 'a' * 10000000 %}{% for i in range(100000) %}{{ x }}{% endfor %}",
    "much output of a loop": "{% set x = 'a' * 10000000 %}{% for i in range(100000) recursive %}{{ x }}{% endfor %}",
    "much output of data": "{% for i in range(100000) %}{{ 'a' * 1000 }}{% endfor %}",
    "splitting": "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x, ('ab ' * 1000000).split()] %}{% endfor %}",
    "lines": "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x, ('ab\n' * 1000000).splitlines()] %}{% endfor %}",
    "characters": "{{ ('中' * 60000000)|list|length }}",
    "words": "{{ ('中 ' * 30000000)|wordcount }}",
    "namespaces": "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% for j in range(100000) %}{% set ns.x = [ns.x, namespace(a=1)] %}{% endfor %}{% endfor %}",
    "dicts": "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% for j in range(100000) %}{% set ns.x = [ns.x, {1: 2}, {1: 2}, {1: 2}] %}{% endfor %}{% endfor %}",
    "a condition of autoescape": "{% autoescape ('a'|center(10000000000)) %}{% endautoescape %}",
    "a constant to print": "{{ 'a'|center(10000000000) ~ 'b' }}",
}
"""Making texts and lists without end, or nearly so."""

UNSTEADY = {
    "printing a function": "{{ range }}",
    "printing a class": "{{ cycler }}",
    "printing an object": "{{ cycler(1) }}",
    "printing a method": "{{ 'a'.upper }}",
    "printing a lazy filter": "{{ messages|map('string') }}",
    "printing it in a list": "{{ [messages|map('string')] }}",
    "printing it by format": "{{ '%s' % (joiner(),) }}",
    "printing it by braces": "{{ '{}'.format(joiner()) }}",
    "printing it by ~": "{{ 'a' ~ joiner() }}",
    "printing it by join": "{{ [joiner()]|join }}",
    "printing it by string": "{{ joiner()|string }}",
    "printing it by upper": "{{ joiner()|upper }}",
    "printing it by JSON": "{{ joiner()|tojson }}",
    "printing it by pprint": "{{ [joiner()]|pprint }}",
    "raising it": "{{ raise_exception(joiner()) }}",
    "a set": "{{ {'a': 1, 'b': 2}.keys() - [] }}",
}
"""Printing what is another text in each process."""

HOSTILE = {**ESCAPES, **ENDLESS, **BOMBS, **UNSTEADY}


def compiled(source: str) -> ChatTemplate:
    return ChatTemplate(source, "t.jinja", date=datetime.date(2026, 11, 3), variables={"bos_token": "<s>"})


def reason(source: str) -> str:
    with pytest.raises(TemplateError) as refusal:
        compiled(source).render(MESSAGES)
    return str(refusal.value)


COUNTS = ("too long", "too much", "too large", "more than", "above", "deep", "brackets", "time zone", "Range too big")
"""What a template is told that came to a bound."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_each_time_in_the_same_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "BASE_STEPS", sandbox.BASE_STEPS // 16)  # the same bounds, sooner reached
    template = compiled(HOSTILE[name])
    messages = copy.deepcopy(MESSAGES)
    words = set()
    for _ in range(2):
        with pytest.raises(TemplateError) as refusal:
            template.render(messages)
        words.add(str(refusal.value))
    assert messages == MESSAGES
    assert len(words) == 1
    (text,) = words
    assert text
    assert len(text) < 400
    assert "\n" not in text
    assert " at 0x" not in text
    if name in ENDLESS or name in BOMBS:
        # A count stopped it, neither Python's own stack nor the lack of memory.
        assert any(count in text for count in COUNTS), text
        assert "it nests too deeply" not in text


def test_what_stops_a_runaway_template_is_a_count_where_marks_are_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "BASE_STEPS", sandbox.BASE_STEPS // 16)
    for name in ("marks by the million", "doubling by generation blocks", "generation without end"):
        with pytest.raises(TemplateError, match=r"too long|too much|more than"):
            compiled(HOSTILE[name]).render_marked(MESSAGES)


@pytest.mark.soak
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_within_the_full_bounds(name: str) -> None:
    assert reason(HOSTILE[name])


_IN_A_SMALL_ROOM = """
import resource
from tests.rendering.test_sandbox import BOMBS, MESSAGES, TemplateError, compiled
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
for name, source in BOMBS.items():
    try:
        compiled(source).render(MESSAGES)
    except TemplateError as error:
        assert "memory" not in str(error), (name, str(error))
    else:
        raise AssertionError(name)
print("done")
"""


def test_text_bombs_need_little_memory() -> None:
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", _IN_A_SMALL_ROOM], cwd=root, capture_output=True, text=True, check=False
    )
    assert run.stdout == "done\n", run.stderr


SAME = [
    "{{ messages }}",
    "{{ messages[0] }} {{ messages[0].role }} {{ messages[0]['role'] }} {{ messages[5] }} {{ messages[0].nothing }}",
    "{{ numbers[1:] }} {{ numbers[::-1] }} {{ numbers[-2:] }} {{ text[2:5] }} {{ text[::-1] }} {{ numbers[:1:2] }}",
    "{{ 1 + 2 }} {{ 1 + 2.5 }} {{ [1] + [2] }} {{ 'a' + 'b' + 'c' }} {{ 1 + 2 + 3 }} {{ (1,) + (2,) }}",
    "{{ 7 - 2 }} {{ 7 * 2 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ 7 % 2 }} {{ 7 ** 2 }} {{ -7 }} {{ 'ab' * 3 }} {{ 3 * [1] }} {{ 2 ** -1 }}",
    "{{ 'a' ~ 1 ~ none ~ 2.5 ~ [1] ~ nothing }}",
    "{{ 'a' < 'b' }} {{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ text == text }} {{ numbers != [3, 1, 2] }} {{ numbers >= [1] }}",
    "{{ 'l' in text }} {{ 'l' not in text }} {{ 1 in numbers }} {{ 'role' in messages[0] }} {{ text in numbers }} {{ 1 in nothing }}",
    "{{ text in ['hello', 'x'] }} {{ (1, 2) in [(1, 2)] }} {{ 3 in range(5) }} {{ 'a' in ['a']|map('lower') }} {{ 'a' in 'abc' in ['abc'] }}",
    "{{ {'a': 1, text: 2, 3: 4}[text] }} {{ {'a': 1}.b }} {{ {(1, 2): 'x'}[(1, 2)] }}",
    "{{ numbers|sort }} {{ numbers|sort(reverse=true) }} {{ ['b', 'A', 'c']|sort }} {{ ['b', 'A']|sort(case_sensitive=true) }}",
    "{{ messages|sort(attribute='content')|map(attribute='role')|join(',') }} {{ messages|sort(false, false, 'role')|length }}",
    "{{ numbers|min }} {{ numbers|max }} {{ []|max }} {{ messages|max(attribute='role') }} {{ numbers|sum }} {{ messages|map(attribute='content')|map('length')|sum }}",
    "{{ [{'a': 1}, {'a': 2}]|sum(attribute='a') }} {{ [[1], [2]]|sum(start=[]) }} {{ []|sum }} {{ numbers|sum(start=1.5) }}",
    "{{ [1, 1, 2]|unique|list }} {{ ['a', 'A']|unique|join }} {{ messages|unique(attribute='role')|list|length }} {{ ['a', 'A']|unique(true)|list }}",
    "{% for key, items in messages|groupby('role') %}{{ key }}={{ items|length }};{% endfor %}{{ messages|groupby('role') }}",
    "{{ numbers|list }} {{ text|list }} {{ messages[0]|list }} {{ nothing|list }} {{ numbers|reverse|list }} {{ text|reverse }} {{ {'a': 1, 'b': 2}|reverse|list }}",
    "{{ numbers|first }} {{ numbers|last }} {{ []|first }} {{ text|first }} {{ numbers|length }} {{ text|count }}",
    "{{ numbers|batch(2)|list }} {{ numbers|batch(2, 0)|list }} {{ numbers|slice(2)|list }} {{ numbers|slice(2, 'x')|list }}",
    "{{ {'b': 1, 'A': 2}|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'A': 2}|dictsort(by='value', reverse=true) }}",
    "{% for key, value in messages[0]|items %}{{ loop.index }}{{ loop.length }}{{ key }}{{ value }}{% endfor %}{{ nothing|items|list }}",
    "{% for key, value in messages[0].items() %}{{ loop.last }}{{ key }}{{ value }}{% endfor %}{{ messages[0].items() }} {{ messages[0].keys() }}",
    "{{ messages|map(attribute='role')|join(', ') }} {{ messages|join('|', attribute='content') }} {{ numbers|join }} {{ numbers|join(0) }} {{ [none, 1.5]|join(',') }}",
    "{{ messages|map(attribute='x', default='d')|list }} {{ ['a']|map('upper')|list }} {{ ['a']|map('replace', 'a', 'b')|list }} {{ nothing|map('upper')|list }}",
    "{{ numbers|select('odd')|list }} {{ numbers|reject('odd')|list }} {{ [0, 1]|select|list }} {{ numbers|select('gt', 1)|list }} {{ numbers|select('in', [1, 2])|list }}",
    "{{ messages|selectattr('role', 'eq', 'user')|list }} {{ messages|rejectattr('role', 'equalto', 'user')|list|length }} {{ messages|selectattr('x')|list }}",
    "{{ text|upper }} {{ text|lower }} {{ text|capitalize }} {{ 'a bc-d'|title }} {{ ' x '|trim }}| {{ 'xax'|trim('x') }} {{ 5|upper }} {{ none|trim }}",
    "{{ text|replace('l', 'L') }} {{ text|replace('l', 'L', 1) }} {{ text|replace('', '-') }} {{ 5|replace(5, 6) }} {{ text|center(11) }}|",
    "{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb\n\nc'|indent(2, true, true) }}|{{ 'a\nb'|indent('> ') }}",
    "{{ 'foo bar baz qux'|truncate(9) }} {{ 'foo bar baz qux'|truncate(9, true) }} {{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}",
    "{{ 'foo bar baz qux'|wordwrap(7) }} {{ 'foooooooo bar'|wordwrap(4, wrapstring='/') }} {{ 'a b'|wordcount }}",
    "{{ '%s, %05.1f %d%% %r'|format('a', 1.25, 3, 'x') }} {{ '%(a)s%(a)s'|format(a=1) }} {{ '%5s|%-5s|' % ('a', 'b') }} {{ '%s' % 'x' }} {{ '%x' % 255 }}",
    "{{ '{} {0!r:>6}'.format if false else '{} {:>6} {x[a]} {x[b].real}'.format('a', 'b', x={'a': 1, 'b': 2}) }} {{ '{a}{a!r}'.format_map({'a': 'x'}) }}",
    "{{ '12'|int }} {{ 'x'|int(5) }} {{ '0x1f'|int(0, 16) }} {{ 3.9|int }} {{ '1.5'|float }} {{ 'x'|float(2) }} {{ -3|abs }} {{ 2.567|round(1) }} {{ 2.1|round(0, 'ceil') }} {{ 7|round }}",
    "{{ 1000|filesizeformat }} {{ 5000000|filesizeformat(true) }} {{ 'a b/c?é'|urlencode }} {{ {'a': 1, 'b': 'x y'}|urlencode }} {{ messages|pprint }}",
    "{{ '<a> & b'|escape }} {{ '<a>'|e|e }} {{ '<a>'|escape|forceescape }} {{ '<a>'|safe }} {{ ('<a>'|safe) + '<b>' }} {{ '<b>' + ('<a>'|safe) }} {{ ('<a>'|safe) ~ '<b>' }}",
    "{{ ('<a>'|safe).upper() }} {{ ('<a>'|safe) % 1 if false else ('%s'|safe) % '<' }} {{ ('{}'|safe).format('<') }} {{ [('<a>'|safe)] }} {{ ('<a>'|safe).replace('a', '<') }}",
    "{{ ('-'|safe).join(['<', '>']) }} {{ ('<a> b'|safe).split() }} {{ '<b>x</b>  y &amp; z'|striptags }} {{ {'a': '<', 'b': none}|xmlattr }} {{ 'see http://x.yz/ now'|urlize }}",
    "{% autoescape true %}{{ '<a>' }} {{ '<a>'|safe }} {{ '<a>' ~ text }} {{ ['<', 'x']|join('&') }} {{ '<'|replace('<', '>') }} {{ 5 }} {% set x %}<{{ '<' }}{% endset %}{{ x }}{% endautoescape %}{{ '<' }}",
    "{% autoescape text %}{{ '<a>' }}{{ '<a>' ~ text }}{{ ('<'|safe) ~ text }}{% endautoescape %}{% autoescape false %}{{ '<a>' ~ 1 }}{% endautoescape %}",
    "{{ messages|tojson }} {{ messages|tojson(indent=2) }} {{ 'é<'|tojson }} {{ 'é'|tojson(ensure_ascii=true) }} {{ {'b': 1, 'a': 2}|tojson(separators=(',', ':'), sort_keys=true) }} {{ none|tojson }}",
    "{{ text.split('l') }} {{ text.split('l', 1) }} {{ 'a b'.split() }} {{ text.rsplit('l', maxsplit=1) }} {{ 'a\nb'.splitlines() }} {{ text.partition('l') }} {{ text.rpartition('l') }}",
    "{{ text.strip('ho') }} {{ text.lstrip('h') }} {{ text.rstrip('o') }} {{ text.startswith('he') }} {{ text.endswith(('x', 'o')) }} {{ text.removeprefix('he') }} {{ text.title() }}",
    "{{ text.find('l') }} {{ text.rfind('l') }} {{ text.index('l') }} {{ text.count('l') }} {{ text.isalpha() }} {{ text.upper().isupper() }} {{ text.replace('l', 'LL', 1) }} {{ '-'.join(text) }}",
    "{{ text.ljust(8, '.') }} {{ text.rjust(8) }} {{ text.center(9, '*') }} {{ '7'.zfill(3) }} {{ 'a\tb'.expandtabs(4) }} {{ text.capitalize() }} {{ text.swapcase() }}",
    "{{ messages[0].get('role') }} {{ messages[0].get('x', 5) }} {{ messages[0].get('x') }} {{ messages[0].values()|list }} {{ numbers.index(2) }} {{ numbers.count(1) }} {{ messages[0].copy() }}",
    "{{ dict(a=1, b=2) }} {{ dict([['a', 1]]) }} {{ dict({'a': 1}, b=2) }} {{ dict.fromkeys('ab', 0) }} {{ dict() }}",
    "{% set ns = namespace(a=1) %}{% set ns.a = ns.a + 1 %}{{ ns.a }} {{ ns.b }} {{ ns }} {% set m = namespace({'x': 1}, y=2) %}{{ m.x + m.y }} {{ namespace(self=1).self }}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }} {% set j = joiner('|') %}{{ j() }}{{ j() }} {{ range(3)|list }} {{ range(1, 9, 3) }}",
    "{{ x is defined }} {{ text is string }} {{ 1 is number }} {{ 1.0 is float }} {{ true is boolean }} {{ none is none }} {{ numbers is iterable }} {{ numbers is sequence }} {{ messages[0] is mapping }}",
    "{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby(3) }} {{ 1 is eq(1) }} {{ 2 is gt 1 }} {{ 'a' is in text }} {{ text is lower }} {{ 'A' is upper }} {{ 1 is sameas 1 }} {{ 1 is ne 2 }} {{ 'x' is filter }} {{ range is callable }}",
    "{% for n in numbers %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.revindex }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(n) }}{{ loop }};{% endfor %}",
    "{% for n in numbers if n != 1 %}{{ loop.index }}{{ n }}{{ loop.length }}{% else %}none{% endfor %}{% for n in [] %}{% else %}none{% endfor %}{% for n in nothing %}x{% endfor %}{% for c in text %}{{ c }}.{% endfor %}",
    "{% for n in numbers %}{% if n == 1 %}{% continue %}{% endif %}{{ n }}{% if n == 2 %}{% break %}{% endif %}{% endfor %}",
    "{% for n in [[1, [2, 3]], [4]] recursive %}{% if n is iterable %}({{ loop(n) }}){% else %}{{ n }}@{{ loop.depth }}{% endif %}{% endfor %}",
    "{% for n in [1, [2, 1], 3] if n != 1 recursive %}{% if n is iterable %}({{ loop(n) }}){% else %}{{ n }}{% endif %}{% endfor %}",
    "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1) }} {{ m(1, 3) }} {{ m(*[1, 2, 3, 4], x=5) }} {{ m(**{'a': 7}) }} {{ m }} {{ m.name }} {{ m.arguments }}",
    "{% macro m(x) %}[{{ caller(x) }}]{% endmacro %}{% call(y) m('a') %}{{ y }}{{ text }}{% endcall %}{% for n in numbers %}{% call(y) m(n) %}{{ loop.index }}{{ y }}{% endcall %}{% endfor %}",
    "{% set x %}a{{ text }}b{% endset %}{{ x }} {% set x | upper %}{{ text }}{% endset %}{{ x }} {% filter upper %}{{ text }}{% endfilter %} {% with a = 1, b = text %}{{ a }}{{ b }}{% endwith %}",
    "{% block b %}{{ text }}{% endblock %} {{ self.b() }} {% if text %}{% set y = 1 %}{% endif %}{{ y }} {{ 'a' if nothing else 'b' }} {{ 'a' if nothing }}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }} {{ (1, 2) }} {{ (1,) }} {{ [] }} {{ {} }} {{ none }} {{ true }} {{ 1.0 }} {{ 1e100 }} {{ nothing }} {{ not nothing }} {{ 1 and 0 or 2 }}",
    "{% generation %}{% set z = 1 %}{{ z }}{% endgeneration %}{{ z }}{% for n in numbers %}{% generation %}{{ n }}{{ loop.index }}{% endgeneration %}{% endfor %}",
    "  {%- if true %}\n  a\n  {%- endif %}\n  {% if true %}  \nb\n  {% endif %}\n  {# c #}\nd\n\n",
    "{{ strftime_now('%Y-%m-%d %H:%M:%S %j %-d %B') }} {{ strftime_now('%d%%20') }}",
    "{{ 'x'|attr('upper') is callable }} {{ text|default('d') }} {{ nothing|default('d') }} {{ ''|default('d', true) }} {{ nothing|d }} {{ 5|string + 'a' }}",
]
"""Templates that print the same here and in transformers, a filter, test or method of use in each."""


class FrozenDatetime(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "FrozenDatetime":
        return cls(2026, 11, 3, tzinfo=tz)


@pytest.mark.parametrize("source", SAME)
def test_what_is_in_bounds_prints_as_in_transformers(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template_utils, "datetime", FrozenDatetime)
    given: Mapping[str, Any] = {"numbers": [3, 1, 2], "text": "hello"}
    wanted = chat_template_utils._compile_jinja_template(source).render(
        messages=MESSAGES, tools=None, documents=None, add_generation_prompt=False, bos_token="<s>", **given
    )
    template = compiled(source)
    assert template.render(MESSAGES, extra=given) == wanted
    assert template.render_marked(MESSAGES, extra=given)[0] == wanted


def test_it_has_the_filters_tests_and_functions_of_transformers_but_those_that_are_random() -> None:
    theirs = chat_template_utils._compile_jinja_template("").environment
    ours = Sandbox(datetime.date(2026, 11, 3))
    own = {name for name in ours.filters if name.startswith("packtool-")}
    assert set(theirs.filters) - {"random"} == set(ours.filters) - own
    assert set(theirs.tests) == set(ours.tests)
    assert set(theirs.globals) - {"lipsum"} == set(ours.globals)


def test_no_filter_is_jinjas_own_unless_it_costs_the_same_whatever_it_is_given() -> None:
    ours = Sandbox(datetime.date(2026, 11, 3)).filters
    assert {name for name, function in ours.items() if function in jinja2.filters.FILTERS.values()} == {
        "abs",
        "count",
        "d",
        "default",
        "last",
        "length",
    }


def test_filters_of_the_sandbox_itself_cannot_be_written() -> None:
    with pytest.raises(jinja2.TemplateSyntaxError):
        Sandbox(datetime.date(2026, 11, 3)).from_string("{{ 1|packtool-spend(-1000) }}").render()


def test_each_render_has_the_whole_budget() -> None:
    template = compiled("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}x")
    assert [template.render(MESSAGES) for _ in range(4)] == ["x"] * 4


def test_budgets_grow_with_the_data() -> None:
    small, large = Meter(), Meter()
    small.start(100)
    large.start(1_000_000)
    assert small.steps < large.steps
    assert small.characters < large.characters


@pytest.mark.parametrize(
    ("value", "size"),
    [("abc", 11), (1, 8), (None, 8), (True, 8), (1.5, 8), ([], 8), ({}, 8), (["abc"], 19), ({"ab": "abc"}, 21)],
)
def test_what_data_weighs(value: Any, size: int) -> None:
    assert weigh_plain(value, {}) == size


def test_a_large_number_weighs_its_digits() -> None:
    assert weigh_plain(10**600, {}) >= 600
    assert weigh_plain([10**600], {}) >= 600
    assert weigh_plain({"a": 10**600}, {}) >= 600


@pytest.mark.parametrize(
    "value", [10**700, -(10**700), b"a", (1,), {1: 2}, {"a": {1}}, [object()], datetime.date(2026, 1, 1), Marked("a")]
)
def test_data_that_is_no_json_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain):
        weigh_plain(value, {})


def test_data_nested_too_deeply_is_refused() -> None:
    value: Any = []
    for _ in range(sandbox.MAX_NESTING - 1):
        value = [value]
    assert weigh_plain(value, {}) > 0
    with pytest.raises(NotPlain):
        weigh_plain([value], {})
