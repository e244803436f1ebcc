"""Checks of arguments against their annotations.

The annotation of a parameter or a setting defines its type; these functions compare the value with
it. So ``seek(None, 3)`` raises a :class:`~skylark.core.errors.ClientError` "queue must be a
MessageQueue, not None", instead of an AttributeError from inside the client.

- :func:`checks_arguments` on a class checks the calls of its public methods, and
  :func:`checks_call` those of a single one. This costs a few microseconds per call, so methods that
  are called for every message (``Producer.send``) have separate checks.
- :func:`check_fields` does the same for the fields of settings, with a ConfigError.
- :func:`settings_of` makes settings from keywords and refuses unknown names.

True and NaN are not numbers; integers must fit into 64 bits, as on the wire. Text instead of a list
of texts is refused, because its letters would become the items. Ranges are checked by the methods.
Annotations without a type to check (protocols, type variables) accept everything.
"""

from __future__ import annotations

import collections.abc
import difflib
import enum
import functools
import inspect
import math
import os
import types
import typing
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast

import msgspec

from skylark.client.core.client_message import Message
from skylark.core.errors import ClientError, ConfigError

T = TypeVar("T")
CallT = TypeVar("CallT", bound=Callable[..., Any])
StructT = TypeVar("StructT", bound=msgspec.Struct)

_INT64: Final = 1 << 63
_SHOWN_MAX: Final = 60
_NAMES: Final[Mapping[object, str]] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    bytes: "bytes",
    type(None): "None",
    timedelta: "a timedelta",
    Path: "a path",
}


def refused(name: str, value: object, wanted: str) -> ClientError:
    """The error for an argument of the wrong type."""
    wrong = _wrong_field(value)
    if wrong is not None:
        field, kind = wrong
        return refused(f"{name}.{field}", getattr(value, field), describe(kind))
    return ClientError(f"{name} must be {wanted}, not {shown(value)}")


def check_function(name: str, value: object) -> None:
    """Raise ClientError for an argument that cannot be called."""
    if not callable(value):
        raise refused(name, value, "a function")


def refuse_generator(name: str, function: Callable[..., object]) -> None:
    """Raise ClientError for a generator function: calling it would run none of its code."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an object with such a __call__
    for each in (function, call):
        if inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each):
            shown_name = getattr(function, "__qualname__", None) or repr(function)
            raise ClientError(
                f"{name} must not be a generator function, and {shown_name} is one",
                hint="a call would run none of its code: remove yield, or call it from a function",
            )


def shown(value: object) -> str:
    """A value for an error message; long ones are cut, objects are shown by their type."""
    if value is None or isinstance(value, (int, float, str, bytes, enum.Enum)):
        text = (
            repr(value) if not isinstance(value, int) or abs(value) < 1 << 80 else "a huge number"
        )
        return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
    return f"a {type(value).__name__}"


# ---- values and annotations ----------------------------------------------------------------------


def fits(value: object, kind: Any) -> bool:
    """Whether a value has the type of an annotation."""
    if kind is Any:
        return True
    if kind is None:
        return value is None
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and -_INT64 <= value < _INT64
    if kind is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and _is_number(value)
    if kind is str:
        return isinstance(value, str) and _is_text(value)
    if kind is Path:
        return isinstance(value, (str, os.PathLike))
    if isinstance(kind, type) and typing.get_origin(kind) is None:
        if _is_protocol(kind):
            return True
        if not isinstance(value, kind):
            return False
        return _wrong_field(value) is None
    return _fits_generic(value, kind)


def _is_text(value: str) -> bool:
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:  # halves of characters
        return False
    return True


def _is_number(value: float) -> bool:
    try:
        return math.isfinite(value)  # event loops have no infinite timeouts
    except OverflowError:  # an integer beyond all floats
        return False


def _is_protocol(kind: type) -> bool:
    if not getattr(kind, "_is_protocol", False):
        return False
    return not getattr(kind, "_is_runtime_protocol", False)


def _fits_generic(value: object, kind: Any) -> bool:
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return fits(value, inner[0])
    if origin in (Union, types.UnionType):
        return any(fits(value, each) for each in inner)
    if origin is Literal:
        return isinstance(value, str) and value in inner
    if origin is collections.abc.Callable:
        return callable(value)
    if origin is tuple:
        return _fits_tuple(value, inner)
    if origin is not None and isinstance(origin, type):
        return _fits_container(value, origin, inner)
    return True


def _fits_tuple(value: object, inner: tuple[Any, ...]) -> bool:
    if not isinstance(value, (tuple, list)):
        return False
    if inner[-1] is Ellipsis:
        return all(fits(each, inner[0]) for each in value)
    return len(value) == len(inner) and all(map(fits, value, inner))


def _fits_container(value: object, origin: type, inner: tuple[Any, ...]) -> bool:
    if isinstance(value, (str, bytes)) or not isinstance(value, origin):
        return False
    if isinstance(value, Mapping):
        return issubclass(origin, Mapping) and all(
            fits(key, inner[0]) and fits(each, inner[1]) for key, each in value.items()
        )
    if isinstance(value, collections.abc.Collection) and len(inner) == 1:
        return all(fits(each, inner[0]) for each in value)
    return True


def describe(kind: Any) -> str:
    """An annotation in words."""
    if kind is None:
        return "None"
    if kind in _NAMES:
        return _NAMES[kind]
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is Annotated:
        return describe(inner[0])
    if origin in (Union, types.UnionType):
        words = dict.fromkeys(map(describe, inner))
        return " or ".join(words)
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if origin is collections.abc.Callable:
        return "a function"
    if origin is tuple and Ellipsis not in inner:
        return f"({', '.join(map(describe, inner))})"
    if origin is not None and issubclass(origin, Mapping):
        return f"a mapping of {describe(inner[0])} to {describe(inner[1])}"
    if origin is not None:
        return f"a list of {describe(inner[0])}"
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return f"a {kind.__name__}: {', '.join(str(each) for each in kind)}"
    name = getattr(kind, "__name__", str(kind))
    return f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


# ---- calls ---------------------------------------------------------------------------------------


def checks_arguments(kind: type[T]) -> type[T]:
    """Class decorator: public methods check the types of their arguments."""
    for name, function in tuple(vars(kind).items()):
        if inspect.isfunction(function) and not name.startswith("_"):
            setattr(kind, name, checks_call(function))
    return kind


def checks_call(function: CallT) -> CallT:
    """Decorator: one method checks the types of its arguments."""
    signature = inspect.signature(function)
    if len(signature.parameters) == 1:  # only self
        return function

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        hints = _hints(function)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            return function(*args, **kwargs)  # raises Python's error
        for name, value in given.items():
            hint = hints.get(name, Any)
            if not fits(value, hint):
                raise refused(name, value, describe(hint))
        return function(*args, **kwargs)

    return cast(CallT, call)


@functools.lru_cache(maxsize=1024)
def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    found = typing.get_type_hints(function)
    found.pop("return", None)
    for name, each in inspect.signature(function).parameters.items():
        if each.kind in (each.VAR_KEYWORD, each.VAR_POSITIONAL):
            found.pop(name, None)
    return found


# ---- settings ------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _field_types(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    return tuple((field.name, field.type) for field in msgspec.structs.fields(kind))


def check_fields(settings: msgspec.Struct) -> None:
    """Raise ConfigError for a field of the wrong type."""
    wrong = _wrong_field(settings)
    if wrong is not None:
        name, kind = wrong
        value = getattr(settings, name)
        raise ConfigError(f"{name} must be {describe(kind)}, not {shown(value)}")


def _wrong_field(struct: object) -> tuple[str, Any] | None:
    """The first field of a struct that has the wrong type.

    Messages have separate checks, which accept more types.
    """
    if isinstance(struct, msgspec.Struct) and not isinstance(struct, Message):
        for name, kind in _field_types(type(struct)):
            if not fits(getattr(struct, name), kind):
                return name, kind
    return None


def settings_of(kind: type[StructT], given: Mapping[str, Any]) -> StructT:
    """Settings from keywords; raises ConfigError for unknown names and wrong values."""
    for name in given:
        if name not in kind.__struct_fields__:
            close = difflib.get_close_matches(name, kind.__struct_fields__, 1)
            hint = f"did you mean {close[0]}?" if close else None
            raise ConfigError(f"there is no setting {name!r}", hint=hint)
    return kind(**given)
