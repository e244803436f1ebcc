"""Formats floating-point numbers as Java does, for settings, headers and bodies."""

from __future__ import annotations

from decimal import Decimal


def java_double(value: float) -> str:
    """Format a number as Java's ``Double.toString`` does, with the fewest digits.

    Zero and absolute values from 1e-3 to below 1e7 have no exponent; others look like ``1.0E10``.
    """
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    if not isinstance(exponent, int):
        return {"n": "NaN", "F": "-Infinity" if sign else "Infinity"}[exponent]
    first, rest = digits[0], "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{first}.{rest}E{exponent + len(digits) - 1}"
