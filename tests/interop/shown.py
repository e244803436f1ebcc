"""Which mqadmin commands and request codes an interoperability test shows to work.

``tools/compatibility.py`` reads these declarations from the source and lists a command or a code
as working only where one of them names it. So a declaration is checked when its test runs: every
command must have been run in it, and our broker must have answered every code that is meant for a
broker with success (see ``admin_site.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, TypeVar

from skylark.wire.codes import RequestCode

Test = TypeVar("Test", bound=Callable[..., None])

_SHOWN: Final = "_shown"


def shows(*commands: str, codes: Iterable[RequestCode] = ()) -> Callable[[Test], Test]:
    """Declare what a test shows; the arguments are plain literals, for they are read as text."""

    def declare(test: Test) -> Test:
        setattr(test, _SHOWN, (frozenset(commands), frozenset(codes)))
        return test

    return declare


def shown_by(test: Callable[..., object]) -> tuple[frozenset[str], frozenset[RequestCode]]:
    """The commands and codes that a test declares; none without a declaration."""
    declared: tuple[frozenset[str], frozenset[RequestCode]] = getattr(
        test, _SHOWN, (frozenset(), frozenset())
    )
    return declared
