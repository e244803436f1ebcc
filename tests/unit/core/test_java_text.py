"""Java's texts of doubles, taken from the real ``Double.toString``."""

from __future__ import annotations

import pytest

from skylark.core.java_text import java_double


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.00099, "9.9E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (9999999999.9, "9.9999999999E9"),
        (-1.234567895e8, "-1.234567895E8"),
        (1e100, "1.0E100"),
        (float("nan"), "NaN"),
        (float("inf"), "Infinity"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_java_double(value: float, text: str) -> None:
    assert java_double(value) == text
