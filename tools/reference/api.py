"""``docs/reference/api.md``: the public names of the package, from their docstrings.

A page of plain Markdown, made by the same tool as the other reference pages, rather than a plugin
of the site's generator: it reads the same in the repository and in the site, it does not depend on
a generator whose maintenance ends in 2027, and the docstrings are reStructuredText, which the
plugins for Markdown show as it is written.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import msgspec

import skylark
import skylark.aio
import skylark.testing
from skylark.admin import admin_client
from skylark.integrations import taskiq_broker, typed_app
from tools.reference.comments import remarks
from tools.reference.markdown import code, head, slug, table

_INTRODUCTION: Final = """
What programs may import. [Clients](../clients.md) is the tutorial, and [settings of the
clients](client-options.md) has the keywords of the constructors. `skylark.sync` has the names of
`skylark.aio`, without `async` and `await`; everything else is the same there. Which of these names
stay as they are is on the page [versions and files](../versions.md).

```python
import skylark
import skylark.aio
import skylark.sync

assert set(skylark.aio.__all__) == set(skylark.sync.__all__)
```
"""
#: Members that are public to other modules of Skylark only.
INTERNAL: Final = {
    "queue_opened", "queue_released", "queues_settled", "refuse_in_handler", "run_until", "session",
    "start_pull", "stop_pull",
}  # fmt: skip
#: A role with the name that it means, or with a text of its own before it.
_ROLE: Final = re.compile(r":([a-z]+):`~?(?:([^`<]+?) <([^`>]+)>|([^`]+))`")
_PACKAGE: Final = Path(skylark.__file__).parent
_PARTS: Final = ("topics", "groups", "offsets", "stats", "messages", "dlq", "settings")


def page() -> str:
    """The whole page."""
    parts = [head("Python API", _INTRODUCTION, written_from="the docstrings")]
    sections: list[tuple[str, str, list[tuple[str, Any]]]] = [
        ("skylark.aio and skylark.sync", "Clients, for asyncio and for threads.",
         _named(skylark.aio, lambda name: name != "Admin")),
        ("Admin", "", [("Admin", admin_client.Admin), *_admin_parts()]),
        ("skylark: messages, options and results", "The names that all clients share.",
         _named(skylark, lambda name: not _is_error(getattr(skylark, name)))),
        ("skylark: errors", "",
         _named(skylark, lambda name: _is_error(getattr(skylark, name)))),
        ("skylark.testing", "Test aids: [tests](../testing.md).", _named(skylark.testing, bool)),
        ("skylark.integrations", "Layers for frameworks: [integrations](../integrations.md).",
         [("typed_app.TypedApp", typed_app.TypedApp),
          ("taskiq_broker.SkylarkBroker", taskiq_broker.SkylarkBroker)]),
    ]  # fmt: skip
    for title, sentence, names in sections:
        parts.append(f"## {title}\n")
        if title == "Admin":
            parts.append(markdown(inspect.getdoc(admin_client) or ""))
        elif title == "skylark: errors":
            parts.append(table(["Error", "Base", "Means"], map(_error_row, names)))
            continue
        if sentence:
            parts.append(f"{sentence}\n")
        index = " · ".join(f"[{name}](#{slug(name)})" for name, _ in names)
        parts.append(f"{index}\n")
        parts += [_entry(name, value) for name, value in names]
    return "\n".join(parts)


def _named(module: ModuleType, wanted: Callable[[str], bool]) -> list[tuple[str, Any]]:
    return [(name, getattr(module, name)) for name in sorted(module.__all__) if wanted(name)]


def _admin_parts() -> list[tuple[str, Any]]:
    kinds = inspect.get_annotations
    found = []
    for part in _PARTS:
        getter = getattr(admin_client.Admin, part)
        returned = kinds(getter.fget)["return"]
        found.append((f"admin.{part}", getattr(admin_client, returned)))
    return found


def _is_error(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, BaseException)


def _error_row(named: tuple[str, Any]) -> list[str]:
    name, error = named
    text = (inspect.getdoc(error) or "").partition("\n\n")[0]
    meaning = " ".join(inline(text).split())
    return [code(name), code(error.__mro__[1].__name__), meaning]


def _entry(name: str, value: Any) -> str:
    """One name: its text, and its fields and methods."""
    parts = [f"### {name}\n"]
    if inspect.isroutine(value):
        parts.append(f"```text\n{_signature(name, value)}\n```\n")
    parts.append(_text(value))
    if isinstance(value, type):
        parts += _members(name, value)
    return "\n".join(part for part in parts if part)


def _text(value: Any) -> str:
    text = inspect.getdoc(value) or ""
    if not isinstance(value, type) and not inspect.isroutine(value):
        # The docstring would be that of its class.
        return f"A constant: `{value!r}`.\n" if isinstance(value, int) else (
            f"A `{type(value).__name__}`.\n"
        )  # fmt: skip
    if isinstance(value, type) and "see the module" in text.lower():
        text = inspect.getdoc(inspect.getmodule(value)) or text
    return markdown(text) if text else ""


def _members(name: str, kind: type) -> Iterator[str]:
    if issubclass(kind, enum.Enum):
        yield table(["Member", "Value"], [[code(it.name), code(repr(it.value))] for it in kind])
        return
    if issubclass(kind, msgspec.Struct):
        said = remarks(kind)
        types = kind.__annotations__
        rows = []
        for field in kind.__struct_fields__:
            meaning = inline(said[field].meaning) if field in said else ""
            text = code(_type(types[field])) if field in types else ""
            rows.append([code(field), ": ".join(part for part in (text, meaning) if part)])
        if rows:
            yield table(["Field", "Type and meaning"], rows)
    for member, value in _public_members(kind):
        yield f"#### {name}.{member}\n"
        if isinstance(value, property):
            yield markdown(inspect.getdoc(value) or "")
            continue
        yield f"```text\n{_signature(member, value)}\n```\n"
        yield markdown(inspect.getdoc(value) or "")


def _public_members(kind: type) -> Iterator[tuple[str, Any]]:
    """Methods and properties in the order of the source, those of base classes of ours included."""
    seen: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] != "skylark":
            continue
        for member, value in vars(base).items():
            if member.startswith("_") or member in INTERNAL:
                continue
            plain = value.__func__ if isinstance(value, (classmethod, staticmethod)) else value
            if isinstance(plain, property) or inspect.isfunction(plain):
                seen[member] = plain
    for member, value in seen.items():
        if inspect.getdoc(value) and not (
            dataclasses.is_dataclass(kind) and member in kind.__dataclass_fields__
        ):
            yield member, value


def _signature(name: str, function: Callable[..., Any]) -> str:
    """A call as it is written in the source, one parameter to a line if it is long."""
    signature = inspect.signature(function)
    texts = []
    marked = False
    for parameter in signature.parameters.values():
        if parameter.name == "self" or parameter.annotation == "Never":  # there to be refused
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            marked = True
        if parameter.kind is parameter.KEYWORD_ONLY and not marked:
            texts.append("*")
            marked = True
        text = "**" if parameter.kind is parameter.VAR_KEYWORD else ""
        text = "*" if parameter.kind is parameter.VAR_POSITIONAL else text
        text += parameter.name
        if parameter.annotation is not parameter.empty:
            text += f": {_type(parameter.annotation)}"
        if parameter.default is not parameter.empty:
            text += f" = {_default(parameter.default)}"
        texts.append(text)
    opening = "async " if inspect.iscoroutinefunction(inspect.unwrap(function)) else ""
    returns = signature.return_annotation
    end = "" if returns is signature.empty else f" -> {_type(returns)}"
    short = f"{opening}{name}({', '.join(texts)}){end}"
    if len(short) <= 100:
        return short
    return f"{opening}{name}(\n" + "".join(f"    {text},\n" for text in texts) + f"){end}"


def _type(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else getattr(
        annotation, "__name__", str(annotation)
    )  # fmt: skip
    return (
        text.replace("Unpack[", "").replace("Keywords]", " settings") if "Unpack" in text else text
    )


def _default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    text = repr(value)
    return "..." if " at 0x" in text or len(text) > 40 else text


# ---- from docstrings to Markdown -----------------------------------------------------------------


def inline(text: str) -> str:
    """Roles and literals of reStructuredText as code; modules that are not public as links."""
    return _ROLE.sub(_role, text).replace("``", "`")


def _role(match: re.Match[str]) -> str:
    kind, said, target, name = match.groups()
    target = target or name
    text = f"``{said or target.rpartition('.')[2]}``"
    if kind == "mod" and (source := _source(target)):
        return f"[{text}](../../src/skylark/{source})"
    return text


def _source(module: str) -> str | None:
    """The file of a module, below ``src/skylark``; none for a package or what a page tells of."""
    file = "/".join(module.split(".")[1:]) + ".py"
    is_shown = module in {"skylark.aio", "skylark.sync"}
    return None if is_shown or not (_PACKAGE / file).is_file() else file


def markdown(text: str) -> str:
    """A docstring as Markdown: literal blocks and tables become blocks that are shown only."""
    parts: list[str] = []
    is_literal = False
    for paragraph in re.split(r"\n{2,}", text.strip("\n")):
        if is_literal and paragraph.startswith("    "):
            block = "\n".join(line.removeprefix("    ") for line in paragraph.splitlines())
            if parts and parts[-1].endswith("\n```") and parts[-1].startswith("```text"):
                parts[-1] = f"{parts[-1][:-4]}\n\n{block}\n```"
            else:
                parts.append(f"```text\n{block}\n```")
            continue
        is_literal = paragraph.rstrip().endswith("::")
        if is_literal:
            paragraph = paragraph.rstrip().removesuffix("::").rstrip()
            if not paragraph:
                continue
            paragraph += ":"
        if re.match(r"=+  =+", paragraph):
            parts.append(f"```text\n{_plain(paragraph)}\n```")
        else:
            parts.append(inline(paragraph))
    return "\n\n".join(parts) + "\n"


def _plain(rows: str) -> str:
    """A table of reStructuredText without its rules and marks."""
    lines = [line for line in rows.splitlines() if not re.match(r"=+  =", line)]
    return "\n".join(
        _ROLE.sub(lambda match: match[2] or match[4], line).replace("``", "") for line in lines
    )
