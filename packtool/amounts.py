"""How amounts are written for people: takes numbers, gives a few characters. One way each, so that views agree."""

from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal


def short(value: float) -> str:
    """A number in at most five characters: 812, 12.3k, 4.1M."""
    for size, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{suffix}" if abs(value) < 999.5 * size else f"{value / size:.0f}{suffix}"
    return f"{value:.3g}"


def percent(share: float) -> str:
    """A share, from 0 to 1, such as 99.76 %: rounded down, so that nothing shows fuller than it is."""
    return f"{_rounded(share, '0.01', ROUND_FLOOR)} %"


def tenths(share: float, *, up: bool = False) -> str:
    """A share in percent to a tenth, without the sign: rounded down, or ``up`` where it is how sure a number is not."""
    return _rounded(share, "0.1", ROUND_CEILING if up else ROUND_FLOOR)


def fill_label(low: float, high: float) -> str:
    """The name of the packs whose fill is from ``low`` to below ``high``; the full ones have both alike."""
    return "full" if low == high else f"{low * 100:g} to {high * 100:g} %"


def _rounded(share: float, step: str, rounding: str) -> str:
    # As it is written, and not as it is stored: 0.57 x 100 is 56.99999999999999.
    return str(Decimal(repr(float(share))).scaleb(2).quantize(Decimal(step), rounding))
