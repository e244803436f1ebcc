"""Requests whose binary header was cut by a known layout; the map of their fields comes on demand.

Hot. A busy client sends one header again and again in which two or three values change
(:mod:`skylark.wire.header_layout`). Making a map of a dozen fields from it, and a custom header
from the map, is most of the work of reading such a request. So a :class:`CutCommand` keeps the
values that change, and :func:`header_of` puts them into a copy of the custom header that another
request of this layout had. Who asks for ``ext`` gets the map, and from then on that is what counts:
it may have been changed.
"""

from __future__ import annotations

from typing import Any, Final, cast

from skylark.core.errors import HeaderFieldError
from skylark.wire.command import Command
from skylark.wire.fields import HeaderT, decode_ext, decode_slowly, number_digits
from skylark.wire.header_layout import Layout

#: Reads and writes the field that the property hides.
_EXT: Final[Any] = Command.__dict__["ext"]


class CutCommand(Command, kw_only=True, gc=False):
    """A decoded frame with what its header has not in common with others.

    ``msgspec.structs`` knows nothing of the property: ask for ``ext`` before you replace anything.
    """

    layout: Layout
    #: Values of ``layout.names``; None once there is a map.
    values: tuple[str, ...] | None

    @property  # type: ignore[misc]  # a field elsewhere
    def ext(self) -> dict[str, str] | None:
        values = self.values
        if values is not None:
            _EXT.__set__(self, self.layout.ext(values))
            self.values = None
        return cast("dict[str, str] | None", _EXT.__get__(self))

    @ext.setter
    def ext(self, ext: dict[str, str] | None) -> None:
        _EXT.__set__(self, ext)
        self.values = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Command):
            return NotImplemented
        return _fields_of(self) == _fields_of(other)

    __ne__ = object.__ne__  # the opposite of that, not what Struct has
    __hash__ = None  # type: ignore[assignment]


def _fields_of(command: Command) -> list[object]:
    return [getattr(command, name) for name in Command.__struct_fields__]


class _Alike:
    """Makes custom headers of one type for requests of one layout."""

    __slots__ = ("_example", "_numbers", "_texts")

    def __init__(
        self, example: object, texts: list[tuple[int, str]], numbers: list[tuple[int, str, int]]
    ) -> None:
        """Places among the values that change, the attributes they are for, and digits allowed."""
        self._example = cast("Any", example)
        self._texts = texts
        self._numbers = numbers

    def read(self, values: tuple[str, ...]) -> Any:
        """The header; None if a value is not that simple."""
        header = self._example.__copy__()
        for place, attribute in self._texts:
            setattr(header, attribute, values[place])
        for place, attribute, digits_max in self._numbers:
            value = values[place]
            if not value.isdecimal() or len(value) > digits_max:
                return None
            setattr(header, attribute, int(value))
        return header


def header_of(header_type: type[HeaderT], command: Command) -> HeaderT:
    """:func:`~skylark.wire.fields.decode_ext` for the fields of a command."""
    if isinstance(command, CutCommand) and (values := command.values) is not None:
        readers = command.layout.readers
        if header_type not in readers:
            readers[header_type] = _learn(header_type, command.layout, values)
        alike = readers[header_type]
        if alike is not None and (header := alike.read(values)) is not None:
            return header  # type: ignore[no-any-return]  # a cast would be a call
    return decode_ext(header_type, command.ext)


def _learn(header_type: type[HeaderT], layout: Layout, values: tuple[str, ...]) -> _Alike | None:
    """How to read headers like this one; None if that takes the map. May raise as ``decode_ext``.

    A value that no field is declared for is ignored, here as there. Where the two roads of
    ``decode_ext`` differ, another value may lead to the other one.
    """
    ext = layout.ext(values)
    example = decode_ext(header_type, ext)
    try:
        if decode_slowly(header_type, ext) != example:
            return None
    except HeaderFieldError:
        return None
    texts: list[tuple[int, str]] = []
    numbers: list[tuple[int, str, int]] = []
    for place, name in enumerate(layout.names):
        found = number_digits(header_type).get(name)
        if found is None:
            continue
        attribute, digits_max = found
        if digits_max is None:
            return None
        if digits_max:
            numbers.append((place, attribute, digits_max))
        else:
            texts.append((place, attribute))
    return _Alike(example, texts, numbers)
