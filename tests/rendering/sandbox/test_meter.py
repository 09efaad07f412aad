"""The budgets of one render."""

from packtool.rendering.sandbox import Meter


def test_budgets_grow_with_the_data() -> None:
    small, large = Meter(), Meter()
    small.start(100)
    large.start(1_000_000)
    assert small.steps < large.steps
    assert small.characters < large.characters
