"""What the source says beside the fields of a class.

::

    # --- where ---                           a group: it goes on until the next one
    port: int = 9876  #: port to listen on    the meaning, behind the field
    #: address to listen on;                  or above it, on any number of lines
    #: loopback unless given
    host: str = "127.0.0.1"
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from dataclasses import dataclass
from functools import cache
from typing import Final

_GROUP: Final = re.compile(r"# -{3} (.+?) -+$")


@dataclass(frozen=True)
class Remark:
    """What stands beside one field."""

    meaning: str
    group: str


@cache
def remarks(owner: type) -> dict[str, Remark]:
    """Remarks on the fields that a class itself declares, by name, in order."""
    source = textwrap.dedent(inspect.getsource(owner))
    (tree,) = ast.parse(source).body
    assert isinstance(tree, ast.ClassDef)
    comments, alone = _comments(source)
    found: dict[str, Remark] = {}
    line_after_last = tree.body[0].lineno
    group = ""
    for node in tree.body:
        name = _declared(node)
        end = node.end_lineno or node.lineno
        above: list[str] = []
        for line in range(line_after_last, node.lineno):
            if line not in alone:
                above.clear()
            elif match := _GROUP.match(comments[line]):
                group = match.group(1)
            elif comments[line].startswith("#:"):
                above.append(comments[line])
        behind = comments.get(end, "")
        texts = [behind] if behind.startswith("#:") else above
        if name is not None:
            meaning = " ".join(text.removeprefix("#:").strip() for text in texts)
            found[name] = Remark(meaning, group)
        line_after_last = end + 1
    return found


def inherited_remarks(owner: type) -> dict[str, Remark]:
    """The same with what the bases declare."""
    found: dict[str, Remark] = {}
    for base in reversed(owner.__mro__):
        if base.__module__.startswith("skylark."):
            found.update(remarks(base))
    return found


def _declared(node: ast.stmt) -> str | None:
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return node.target.id
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
        return node.targets[0].id
    return None


def _comments(source: str) -> tuple[dict[int, str], set[int]]:
    """Comments by line, and the lines that hold nothing else."""
    comments: dict[int, str] = {}
    alone: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = token.string
            if token.line[: token.start[1]].strip() == "":
                alone.add(token.start[0])
    return comments, alone
