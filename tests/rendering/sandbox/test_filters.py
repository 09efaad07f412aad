"""Filters, tests and functions: those of transformers, each of which pays."""

import datetime

import jinja2
import jinja2.filters
import pytest
from transformers.utils import chat_template_utils

from packtool.rendering.sandbox import Sandbox


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
