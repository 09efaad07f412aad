"""What a template is refused, each time in the same words, and what it prints as in transformers."""

import copy
import datetime
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from transformers.utils import chat_template_utils

from packtool.rendering.chat_template import TemplateError
from packtool.rendering.sandbox import meter
from tests.rendering.sandbox.hostile import BOMBS, COUNTS, ENDLESS, HOSTILE, MESSAGES, compiled

# ruff: noqa: E501


def reason(source: str) -> str:
    with pytest.raises(TemplateError) as refusal:
        compiled(source).render(MESSAGES)
    return str(refusal.value)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_each_time_in_the_same_words(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meter, "BASE_STEPS", meter.BASE_STEPS // 16)  # the same bounds, sooner reached
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
    monkeypatch.setattr(meter, "BASE_STEPS", meter.BASE_STEPS // 16)
    for name in ("marks by the million", "doubling by generation blocks", "generation without end"):
        with pytest.raises(TemplateError, match=r"too long|too much|more than"):
            compiled(HOSTILE[name]).render_marked(MESSAGES)


@pytest.mark.soak
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_refused_within_the_full_bounds(name: str) -> None:
    assert reason(HOSTILE[name])


_IN_A_SMALL_ROOM = """
import resource
from packtool.rendering.chat_template import TemplateError
from tests.rendering.sandbox.hostile import BOMBS, MESSAGES, compiled
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
    root = Path(__file__).parents[3]
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
    "{% for m in messages %}{{ m.role }}{{ m['content'] }}{{ m.nothing }}{{ m['nothing'] }}{{ m.items() | list }}{{ m['role'] }}{{ loop['index0'] }}{% endfor %}",
    "{% set d = {'first': 1, 'index0': 2, 'items': 3, 'get': 4} %}{{ d.first }}{{ d.index0 }}{{ d['items'] }}{{ d['get'] }}{{ d.get('first') }}{{ text['upper']() }}{{ numbers[0] }}{{ numbers['0'] }}",
    "{% set ns = namespace(role='r') %}{{ ns.role }}{{ ns['role'] }}{% macro m(d, e) %}{{ d.role }}{{ d['role'] }}{{ e.role is defined }}{% endmacro %}{{ m(messages[0], 1) }}",
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


def test_each_render_has_the_whole_budget() -> None:
    template = compiled("{% for a in range(1000) %}{% for b in range(1000) %}{% endfor %}{% endfor %}x")
    assert [template.render(MESSAGES) for _ in range(4)] == ["x"] * 4
