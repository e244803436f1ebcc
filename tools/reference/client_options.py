"""``docs/reference/client-options.md``: settings of the Python clients, from their structs."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullKeywords, LitePullSettings
from skylark.client.consumer.push.push_settings import PushKeywords, PushSettings
from skylark.client.core.client_options import ClientOptions, Duration
from skylark.client.producer.producer_settings import ProducerKeywords, ProducerSettings
from tools.reference.comments import remarks
from tools.reference.markdown import code, head, table

#: Heading, struct, the keywords that a constructor takes, and a sentence.
KINDS: Final[tuple[tuple[str, type[msgspec.Struct], Any, str], ...]] = (
    (
        "ClientOptions",
        ClientOptions,
        None,
        "Where and who: the first argument after the group of every client.",
    ),
    ("Producer", ProducerSettings, ProducerKeywords, "Keywords of `Producer`. Sizes are bytes."),
    (
        "PushConsumer",
        PushSettings,
        PushKeywords,
        "Keywords of `PushConsumer`. Thresholds of size are MiB, as in Java.",
    ),
    (
        "LitePullConsumer",
        LitePullSettings,
        LitePullKeywords,
        "Keywords of `LitePullConsumer`. Sizes are bytes.",
    ),
)
_INTRODUCTION: Final = """
The settings of `skylark.aio` and `skylark.sync`, which are the same; [clients](../clients.md) is
the tutorial. A *duration* is a number of seconds or a `timedelta`. What stands before a colon is
the name of Java's client for the same thing. Wrong names and values raise `ConfigError` at once.

```python
from datetime import timedelta

from skylark import ClientOptions
from skylark.sync import Producer

options = ClientOptions(namesrv="127.0.0.1:9876", request_timeout=timedelta(seconds=5))
producer = Producer("shop", options, send_timeout=10, compress_type="ZSTD")
assert producer.settings.send_timeout == 10.0
```
"""
_ROLES: Final = re.compile(r":[a-z]+:`([^`]+)`")


def page() -> str:
    """The whole page."""
    parts = [head("Settings of the clients", _INTRODUCTION, written_from="their structs")]
    for title, struct, keywords, sentence in KINDS:
        parts.append(f"## {title}\n\n{sentence}\n")
        parts.append(table(["Setting", "Type", "Default", "Meaning"], _rows(struct, keywords)))
    return "\n".join(parts)


def _rows(struct: type[msgspec.Struct], keywords: Any) -> Iterator[list[str]]:
    said = remarks(struct)
    hints = get_type_hints(keywords or struct)
    for field in msgspec.structs.fields(struct):
        meaning = said[field.name].meaning
        if not meaning:
            raise ValueError(f"{struct.__name__}.{field.name}: nothing says what it means")
        meaning = _ROLES.sub(r"`\1`", meaning).replace("``", "`")
        yield [code(field.name), type_text(hints[field.name]), code(shown(field.default)), meaning]


def type_text(hint: Any) -> str:
    """A type in words."""
    if hint == Duration:
        return "duration"
    if get_origin(hint) in (types.UnionType, Union):
        members = [each for each in get_args(hint) if each is not type(None)]
        duration = set(get_args(Duration))
        texts = ["duration"] if duration <= set(members) else []
        texts += [type_text(each) for each in members if not (texts and each in duration)]
        return " or ".join(dict.fromkeys(texts))
    origin = getattr(get_origin(hint), "__name__", "")
    if origin == "Callable":
        return "function"
    if origin:
        return f"{origin.lower()} of {', '.join(map(type_text, get_args(hint)))}"
    return {bool: "boolean", int: "integer", float: "number", str: "text", object: "object"}.get(
        hint, getattr(hint, "__name__", str(hint))
    )


def shown(value: Any) -> str:
    """A default as one would write it."""
    if isinstance(value, frozenset):
        return ", ".join(str(int(each)) for each in sorted(value))
    if hasattr(value, "name"):
        return str(value.name)
    return repr(value).replace('"', "'")
