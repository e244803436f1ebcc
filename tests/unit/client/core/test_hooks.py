"""Hooks: objects with the methods they care for."""

from __future__ import annotations

import pytest

from skylark.client.core.hooks import call_hooks, hook_methods


class First:
    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    def before_send(self, context: str) -> None:
        self.seen.append(f"first {context}")
        raise ZeroDivisionError


class Second(First):
    def before_send(self, context: str) -> None:
        self.seen.append(f"second {context}")

    after_send = None


def test_all_hooks_are_called_whatever_one_of_them_raises(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen: list[str] = []
    hooks = (First(seen), object(), Second(seen))
    call_hooks(hook_methods(hooks, "before_send"), "x")
    assert seen == ["first x", "second x"]
    assert "failed" in caplog.text
    assert hook_methods(hooks, "after_send") == ()
