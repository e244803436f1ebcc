"""The table of settings that nothing reads."""

from __future__ import annotations

from collections import Counter

from skylark.broker.config import BrokerConfig
from skylark.broker.ignored_settings import (
    IGNORED,
    REFUSED,
    IgnoredSettings,
    ignored_keys,
)
from skylark.core.config import own_settings, settings
from skylark.store.config import StoreConfig


def test_no_key_stands_twice() -> None:
    counts = Counter(key for key, _, _ in ignored_keys())
    assert [key for key, count in counts.items() if count > 1] == []


def test_settings_in_use_are_not_called_ignored() -> None:
    used = {info.java for info in (*settings(StoreConfig), *own_settings(BrokerConfig))}
    assert used & {key for key, _, _ in ignored_keys()} == set()


def test_types_follow_from_the_defaults() -> None:
    kinds = {info.java: (info.kind, info.default) for info in settings(IgnoredSettings)}
    assert kinds["useTLS"] == (bool, False)
    assert kinds["defaultPopShareQueueNum"] == (int, -1)
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
