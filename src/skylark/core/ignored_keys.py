"""Config sections of settings that nothing reads: a table of Java's keys, grouped by reason.

A properties file of a Java server loads unchanged, and its tools find every key they know. The
table has the reason as key, and as value ``key=default`` of each setting, separated by white space.
A key without ``=`` has no default in Java and is printed only once it is set. The type of a setting
is that of its default.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Annotated, Any, Final, cast

import msgspec

from skylark.core.config import Config, Scalar, Setting

_INTEGER: Final = re.compile(r"0|-?[1-9][0-9]*")
_DECIMAL: Final = re.compile(r"-?[0-9]+\.[0-9]+")


def ignored_keys(table: Mapping[str, str]) -> Iterator[tuple[str, str | None, str]]:
    """Key, default as text (None: Java has none) and reason of every row of the table."""
    for reason, rows in table.items():
        for row in rows.split():
            key, has_default, default = row.partition("=")
            yield key, default if has_default else None, reason


def ignored_section(
    table: Mapping[str, str],
    *,
    module: str,
    base: type[Config] = Config,
    without: Collection[str] = (),
) -> type[Config]:
    """The config type ``IgnoredSettings`` of ``module``; its attributes are named as in Java."""
    fields = []
    for key, text, reason in ignored_keys(table):
        if key not in without:
            kind, default = _kind_and_default(text)
            setting = Setting(f"Ignored: {reason}.", java=key)
            fields.append((key, Annotated[kind, setting], default))
    section = msgspec.defstruct(
        "IgnoredSettings", fields, bases=(base,), module=module, frozen=True, kw_only=True
    )
    return cast("type[Config]", section)


def _kind_and_default(text: str | None) -> tuple[Any, Scalar]:
    if text is None:
        return str | None, None
    if text in ("true", "false"):
        return bool, text == "true"
    if _INTEGER.fullmatch(text):
        return int, int(text)
    return (float, float(text)) if _DECIMAL.fullmatch(text) else (str, text)
