"""The table of settings that nothing reads."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import skylark
from skylark.broker.config import BrokerConfig
from skylark.broker.ignored_settings import (
    IGNORED,
    REFUSED,
    IgnoredSettings,
)
from skylark.core.config import own_settings, settings
from skylark.core.ignored_keys import ignored_keys
from skylark.store.config import REFUSED as STORE_REFUSED
from skylark.store.config import StoreConfig

SOURCES = Path(skylark.__file__).parent


def test_no_key_stands_twice() -> None:
    counts = Counter(key for key, _, _ in ignored_keys(IGNORED))
    assert [key for key, count in counts.items() if count > 1] == []


def test_settings_in_use_are_not_called_ignored() -> None:
    used = {info.java for info in (*settings(StoreConfig), *own_settings(BrokerConfig))}
    assert used & {key for key, _, _ in ignored_keys(IGNORED)} == set()


def test_types_follow_from_the_defaults() -> None:
    kinds = {info.java: (info.kind, info.default) for info in settings(IgnoredSettings)}
    assert kinds["useTLS"] == (bool, False)
    assert kinds["popReviveConcurrency"] == (int, 32)
    assert kinds["timerRocksDBRollMaxTps"] == (float, 8000.0)
    assert kinds["timerCheckMetricsWhen"] == (str, "05")  # not the number 5
    assert kinds["controllerAddr"] == (str, "")
    assert kinds["dLegerGroup"] == (str, None)


def test_each_setting_says_why() -> None:
    documented = {info.java: info.declared.doc for info in settings(IgnoredSettings)}
    assert documented["sendMessageThreadPoolNums"] == (
        "Ignored: one event loop answers all requests, there are no thread pools."
    )
    assert all(reason.strip() and rows.strip() for reason, rows in IGNORED.items())


def test_refusals_are_about_ignored_settings() -> None:
    defaults = {info.java: info.default for info in settings(IgnoredSettings)}
    assert {key: defaults[key] for key in REFUSED} == {
        key: accepted for key, (accepted, _) in REFUSED.items()
    }


#: Settings that nothing reads and that are not called ignored: they have one value only.
REFUSED_BY_CHECK = {"lock_in_strict_mode"}


def test_every_setting_changes_something_or_is_called_ignored() -> None:
    read = names_read("broker") | names_read("store")
    declared = {info.name for info in (*own_settings(BrokerConfig), *own_settings(StoreConfig))}
    assert len(declared) > 150
    assert declared - read == REFUSED_BY_CHECK | set(STORE_REFUSED)


def names_read(package: str) -> set[str]:
    """Attributes that some code of a package reads, and names by which it may; no validation."""
    names = set()
    for path in (SOURCES / package).rglob("*.py"):
        for node in walk_but(ast.parse(path.read_text()), "check"):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                names.add(node.attr)
            elif isinstance(node, ast.Constant) and path.name != "config.py":
                names.add(str(node.value))  # overload limits, by the names of their settings
    return names


def walk_but(node: ast.AST, skipped: str) -> Iterator[ast.AST]:
    """All nodes outside of functions with this name."""
    yield node
    for child in ast.iter_child_nodes(node):
        if not (isinstance(child, ast.FunctionDef) and child.name == skipped):
            yield from walk_but(child, skipped)
