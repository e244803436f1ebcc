"""``docs/reference/requests.md``: every request of the protocol, from the catalogue."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Final, Union, get_args, get_origin

import msgspec

from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.fields import Header, Int32, Int64
from skylark.wire.rows.catalogue_row import Access, BodyKind, BodyType, Oneway, Row
from tools.reference.comments import inherited_remarks, remarks
from tools.reference.markdown import code, head, slug, table

PARTIES: Final = {
    "C": "client",
    "B": "broker",
    "S": "slave",
    "N": "name server",
    "A": "admin tool",
    "K": "controller",
}
BODIES: Final = {
    BodyKind.MESSAGE: "the body of a message, or a batch",
    BodyKind.RECORDS: "messages as they stand in the log",
    BodyKind.PROPERTIES: "properties text, `key=value` lines",
    BodyKind.TEXT: "text",
    BodyKind.BINARY: "bytes",
}
ONE_WAY: Final = {
    Oneway.NEVER: "",
    Oneway.SOMETIMES: "Java's clients and brokers sometimes send it one-way.",
    Oneway.ALWAYS: "Java's clients and brokers send it one-way and wait for no answer.",
}
_INTRODUCTION: Final = """
Every request code of RocketMQ 5.5.0 and the few that are Skylark's own: who sends it to whom, its
fields, its body, and how it may be answered. Which of them work is told with the tests that show
it in [compatibility](../compatibility.md); how they travel, in the
[architecture](../design/architecture.md).

Fields are entries of the command's `extFields`, all of them text on the wire. *needed* means that a
request without the field is answered with code 1. Besides the answers that are listed every request
may be answered with 0 (done), 1 (an error; the remark says which), 2 (busy) and 3 (not supported).
*Access* is what RocketMQ's ACL 2.0 asks of the caller; Skylark's brokers do not check it yet.

This page is made from the source:

```console
$ make reference
```
"""


def page() -> str:
    """The whole page."""
    used = [row for row in CATALOGUE.values() if row.direction]
    unused = [row for row in CATALOGUE.values() if not row.direction]
    meanings = remarks(RequestCode)
    overview = table(
        ["Code", "Request", "Between", "What it does"],
        (
            [str(row.code), f"[{row.name}](#{slug(_heading(row))})", _between(row.direction), text]
            for row in used
            if (text := meanings[row.name].meaning)
        ),
    )
    parts = [
        head("Requests", _INTRODUCTION, written_from="the catalogue (`src/skylark/wire/rows`)"),
        f"## All requests\n\n{overview}",
        "## Each request\n",
        *(_section(row, meanings[row.name].meaning) for row in used),
        "## Defined, and sent by nobody\n\nThese are answered with code 3.\n",
        table(["Code", "Request"], ([str(row.code), row.name] for row in unused)),
        "## Answers\n",
        table(
            ["Code", "Name"],
            ([str(int(each)), each.name] for each in ResponseCode),
        ),
    ]
    return "\n".join(parts)


def _heading(row: Row) -> str:
    return f"{row.name} ({row.code})"


def _between(direction: str) -> str:
    """``C->B`` in words."""
    ends = (", ".join(PARTIES[letter] for letter in end) for end in direction.split("->"))
    return " to ".join(ends)


def _section(row: Row, meaning: str) -> str:
    lines = [f"From {_between(row.direction)}: {meaning}.", ONE_WAY[row.oneway]]
    if row.extension is not None:
        lines.append(f"Skylark's own: {row.extension}.")
    lines.extend(_access(row.access))
    answers = ", ".join(f"{each} {ResponseCode(each).name}" for each in row.response_codes)
    if answers:
        lines.append(f"May be answered with {answers}.")
    parts = [f"### {_heading(row)}\n", "\n".join(line for line in lines if line) + "\n"]
    fields = [
        *_fields(row.request_header, "request"),
        *_body(row.request_body, "request"),
        *_fields(row.response_header, "answer"),
        *_body(row.response_body, "answer"),
    ]
    if fields:
        parts.append(table(["In", "Field", "Type", "Meaning"], fields))
    return "\n".join(parts)


def _access(needed: tuple[Access, ...]) -> Iterator[str]:
    for access in needed:
        actions = " or ".join(access.actions)
        if access.resource == "Cluster":
            where = "the cluster"
        elif access.field is None:
            where = f"each {access.resource.lower()} of the body"
        else:
            where = f"the {access.resource.lower()} `{access.field}`"
        yield f"Access: {actions} of {where}."


def _fields(header: type[Header] | None, where: str) -> Iterator[list[str]]:
    if header is None:
        return
    said = inherited_remarks(header)
    for field in msgspec.structs.fields(header):
        name, is_optional = _type_name(field.type)
        needed = ", needed" if field.required and where == "request" else ""
        optional = ", may be absent" if is_optional and where == "answer" else ""
        meaning = said[field.name].meaning if field.name in said else ""
        yield [where, code(field.encode_name), f"{name}{needed}{optional}", meaning.strip()]


def _type_name(hint: Any) -> tuple[str, bool]:
    """A name for people, and whether the field may be missing."""
    is_optional = get_origin(hint) in (types.UnionType, Union)
    if is_optional:
        (hint,) = (each for each in get_args(hint) if each is not type(None))
    names = {str: "text", bool: "boolean", float: "number", Int32: "int32", Int64: "int64"}
    return names[hint], is_optional


def _body(body: BodyKind | BodyType, where: str) -> Iterator[list[str]]:
    if not isinstance(body, BodyKind):
        yield [where, "body", "JSON", _json_body(body)]
    elif body is not BodyKind.NONE:
        yield [where, "body", "", BODIES[body]]


def _json_body(body_type: Any) -> str:
    """The name of a JSON body and its keys."""
    arguments = get_args(body_type)
    if arguments:
        inner = ", ".join(_json_body(each) for each in arguments if isinstance(each, type))
        return f"{get_origin(body_type).__name__} of {inner}"
    if not issubclass(body_type, msgspec.Struct):
        return str(body_type.__name__)
    keys = ", ".join(code(field.encode_name) for field in msgspec.structs.fields(body_type))
    return f"{body_type.__name__}: {keys}" if keys else str(body_type.__name__)
