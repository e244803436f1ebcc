"""Checks of arguments against their annotations.

The annotation of a parameter or a setting defines its type; these functions compare the value with
it. So ``seek(None, 3)`` raises a :class:`~skylark.core.errors.ClientError` "queue must be a
MessageQueue, not None", instead of an AttributeError from inside the client.

- :func:`checks_arguments` on a class checks the calls of its public methods, and
  :func:`checks_call` those of a single one. This costs a few microseconds per call, so methods that
  are called for every message (``Producer.send``) have separate checks.
- :func:`check_fields` does the same for the fields of settings, with a ConfigError.
- :func:`suggests_keywords` names the right keyword for a misspelt one, or one of Java's client.

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
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeVar, Union, cast

import msgspec

from skylark.client.core.client_message import Message
from skylark.core.errors import ClientError, ConfigError

T = TypeVar("T")
CallT = TypeVar("CallT", bound=Callable[..., Any])

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
            given = {}
        if not given:  # not within the except, so that the error below has no second one
            if args:
                _refuse_unknown(function, args[0], kwargs)
            return function(*args, **kwargs)  # raises Python's error
        for name, value in given.items():
            hint = hints.get(name, Any)
            if not fits(value, hint):
                raise refused(name, value, describe(hint))
        return function(*args, **kwargs)

    return cast(CallT, call)


def _refuse_unknown(
    function: Callable[..., Any], target: object, kwargs: Mapping[str, Any]
) -> None:
    """Raise UnknownKeywordError for a keyword that a method does not have."""
    known = _keywords(function)
    for name in kwargs:
        if name not in known:
            what = f"{type(target).__name__}.{function.__name__}()"
            raise unknown_keyword(what, name, known, kind=type(target))


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
def field_types(kind: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """The fields of a struct with their types."""
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
        for name, kind in field_types(type(struct)):
            if not fits(getattr(struct, name), kind):
                return name, kind
    return None


# ---- keywords ------------------------------------------------------------------------------------

#: Our names for settings of other clients, RocketMQ's for Java first, as :func:`plain_name` has
#: them. Names that differ from ours in case and underscores only need no entry.
OTHER_NAMES: Final[Mapping[str, str]] = {
    "namesrvaddr": "namesrv",
    "nameserver": "namesrv",
    "nameserveraddress": "namesrv",
    "nameservers": "namesrv",
    "bootstrapservers": "namesrv",
    "accesskey": "acl",
    "secretkey": "acl",
    "enablevipchannel": "vip_channel",
    "vipchannelenabled": "vip_channel",
    "mqclientapitimeout": "request_timeout",
    "pollnameserverinterval": "route_interval",
    "heartbeatbrokerinterval": "heartbeat_interval",
    "persistconsumeroffsetinterval": "offset_interval",
    "pulltimedelaymillswhenexception": "pull_error_delay",
    "useheartbeatv2": "heartbeat_v2",
    "enabletrace": "trace",
    "enablemsgtrace": "trace",
    "tracemsgbatchnum": "trace_batch",
    "sendlatencyfaultenable": "send_latency",
    "startdetectorenable": "start_detector",
    "producergroup": "group",
    "consumergroup": "group",
    "groupid": "group",
    "sendmsgtimeout": "send_timeout",
    "sendmsgmaxtimeoutperrequest": "attempt_timeout",
    "retrytimeswhensendfailed": "retries",
    "retrytimeswhensendasyncfailed": "retries_async",
    "retryanotherbrokerwhennotstoreok": "retry_another_broker",
    "retryresponsecodes": "retry_codes",
    "compressmsgbodyoverhowmuch": "compress_over",
    "compressiontype": "compress_type",
    "createtopickey": "topic_model",
    "defaulttopicqueuenums": "topic_queue_count",
    "autobatch": "batching",
    "batchmaxdelayms": "linger",
    "lingerms": "linger",
    "batchmaxbytes": "batch_size_max",
    "batchsize": "batch_size_max",
    "backpressureforasyncsendnum": "pending_max",
    "backpressureforasyncsendsize": "pending_bytes_max",
    "buffermemory": "pending_bytes_max",
    "delaytimelevel": "delay_level",
    "consumethreadmin": "concurrency",
    "consumethreadmax": "concurrency",
    "consumethreadnums": "concurrency",
    "maxretries": "max_reconsume_times",
    "retries": "max_reconsume_times",  # of a consumer: a producer has retries
    "allocatemessagequeuestrategy": "allocation",
    "partitionassignmentstrategy": "allocation",
    "autooffsetreset": "consume_from_where",
    "suspendcurrentqueuetimemillis": "suspend_current_queue_time",
    "awaitterminationmilliswhenshutdown": "await_termination",
    "messagequeuelistener": "queue_listener",
    "invisibletime": "invisible",
    "invisibleduration": "invisible",
    "enableautocommit": "auto_commit",
    "autocommitintervalmillis": "auto_commit_interval",
    "autocommitintervalms": "auto_commit_interval",
    "polltimeoutmillis": "poll_timeout",
    "maxpollrecords": "pull_batch_size",
    "brokersuspendmaxtimemillis": "suspend_max",
    "consumertimeoutmilliswhensuspend": "suspend_timeout",
    "topicmetadatacheckintervalmillis": "metadata_interval",
}


class UnknownKeywordError(ConfigError, TypeError):
    """A call with a keyword argument that does not exist."""


def suggests_keywords(init: CallT) -> CallT:
    """Decorator of ``__init__``: an unknown keyword raises an error that names the right one.

    Also if another argument is missing, which Python would report first.
    """

    @functools.wraps(init)
    def call(self: object, *args: Any, **kwargs: Any) -> None:
        known = _keywords(init) if kwargs else {}
        for name in kwargs:
            if name not in known:
                raise unknown_keyword(type(self).__name__, name, known)
        init(self, *args, **kwargs)

    return cast(CallT, call)


def unknown_keyword(
    what: str, name: str, known: Mapping[str, Any], *, kind: type | None = None
) -> UnknownKeywordError:
    """The error for a keyword that a class or function does not have.

    ``known`` are its parameters with their types. If one of these is a struct, such as the options
    of a client, its fields are suggested too. ``kind`` is the class of a method: if it is a client,
    what its constructor takes is suggested as well.
    """
    init = getattr(kind, "__init__", None)
    settings = _keywords(init) if hasattr(init, "__wrapped__") else {}  # by suggests_keywords
    inner = [
        (parameter, struct, dict(field_types(struct)))
        for parameter, hint in known.items()
        for struct in (hint, *typing.get_args(hint))
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
    ]
    for find in (_same_name, _similar_name):
        if found := find(name, known):
            hint = f"did you mean {found}{_unit(known[found])}?"
            break
        for parameter, struct, fields in inner:
            if found := find(name, fields):
                hint = f"it belongs to the options: {parameter}={struct.__name__}({found}=...)"
                return UnknownKeywordError(_unexpected(what, name), hint=hint)
        if kind is not None and (found := find(name, settings)):
            hint = f"it belongs to the constructor: {kind.__name__}({found}=...)"
            return UnknownKeywordError(_unexpected(what, name), hint=hint)
    else:
        hint = f"known: {', '.join(sorted(known))}"
    return UnknownKeywordError(_unexpected(what, name), hint=hint)


def _unexpected(what: str, name: str) -> str:
    return f"{what} got an unexpected keyword argument {name!r}"


def _unit(hint: Any) -> str:
    return ", in seconds" if timedelta in typing.get_args(hint) else ""


def plain_name(name: str) -> str:
    """A name without case and underscores: ``sendMsgTimeout`` is ``sendmsgtimeout``."""
    return name.replace("_", "").lower()


def _same_name(name: str, known: Iterable[str]) -> str | None:
    """The parameter that has this name elsewhere."""
    plain = plain_name(name)
    wanted = plain_name(OTHER_NAMES.get(plain, plain))
    return next((each for each in known if plain_name(each) == wanted), None)


def _similar_name(name: str, known: Iterable[str]) -> str | None:
    by_plain = {plain_name(each): each for each in known}
    close = difflib.get_close_matches(plain_name(name), by_plain, 1, cutoff=0.75)
    return by_plain[close[0]] if close else None


@functools.lru_cache(maxsize=64)
def _keywords(function: Callable[..., Any]) -> Mapping[str, Any]:
    """The keyword parameters of a function, those of a typed ``**`` included, with their types."""
    hints = typing.get_type_hints(function)
    found: dict[str, Any] = {}
    for parameter in list(inspect.signature(function).parameters.values())[1:]:  # without self
        hint = hints.get(parameter.name, Any)
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= typing.get_type_hints(typing.get_args(hint)[0])
        else:
            found[parameter.name] = hint
    return found
