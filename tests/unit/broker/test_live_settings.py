"""Settings that change while the broker runs."""

from __future__ import annotations

import logging

import pytest

from skylark.broker.config import load_broker_config
from skylark.broker.live_settings import LiveSettings
from skylark.core.config import InvalidConfigError, ReadOnlySettingError, parse_properties
from skylark.core.errors import ConfigError
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body
from tests.unit.broker.tables import NOW_MS, live_settings, recorded


def test_a_change_is_another_object() -> None:
    live = live_settings()
    before = live.current
    named = live.update(b"flushIntervalCommitLog=400\nbrokerPermission=6\n", NOW_MS + 5)
    assert live.current.store.flush_interval_commit_log == 400
    assert before.store.flush_interval_commit_log == 500
    assert named == {"flushIntervalCommitLog", "brokerPermission"}


def test_the_version_counts_requests_even_of_unknown_keys() -> None:
    live = live_settings()
    assert live.version == DataVersion(timestamp=NOW_MS)
    live.update("noSuchKey=1\n", NOW_MS + 7)
    assert live.version == DataVersion(counter=1, timestamp=NOW_MS + 7)


def test_a_real_broker_counts_the_same() -> None:
    """It had been sent one black-listed key, refused, and one unknown key."""
    updates = list(recorded("errors", RequestCode.UPDATE_BROKER_CONFIG))
    assert [command.code for is_request, command in updates if not is_request] == [16, 0]
    refused, taken = (command.body or b"" for is_request, command in updates if is_request)
    live = live_settings()
    with pytest.raises(ReadOnlySettingError, match=r"^Can not update config in black list\."):
        live.update(refused, NOW_MS)
    live.update(taken, NOW_MS)
    (answer,) = (
        command
        for is_request, command in recorded("admin-getBrokerConfig", RequestCode.GET_BROKER_CONFIG)
        if not is_request
    )
    version = decode_body(DataVersion, (answer.ext or {})["version"].encode())
    assert (version.counter, version.state_version) == (live.version.counter, 0)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("storePathRootDir=/elsewhere\nregionId=r\n", ReadOnlySettingError),
        ("rocketmqHome=/elsewhere\n", ReadOnlySettingError),
        ("configBlackList=\n", ReadOnlySettingError),
        ("regionId=r\nbrokerPermission=x\n", InvalidConfigError),
        ("regionId=r\naclEnable=true\n", InvalidConfigError),
        ("regionId=r\nbrokerId=7\n", InvalidConfigError),
        ("regionId=\\u00\n", ConfigError),
    ],
)
def test_a_refused_change_changes_nothing(text: str, error: type[ConfigError]) -> None:
    live = live_settings()
    before = live.current
    with pytest.raises(error):
        live.update(text, NOW_MS + 5)
    assert live.current is before
    assert live.version.counter == 0


def test_what_operators_forbid_is_read_only() -> None:
    live = live_settings(configBlackList="regionId")
    with pytest.raises(ReadOnlySettingError):
        live.update("regionId=r\n", NOW_MS)


def test_the_text_is_sorted_and_tells_what_the_broker_can() -> None:
    lines = live_settings().text().splitlines()
    assert lines == sorted(lines)
    assert "transactionEndIdempotent=true" in lines
    assert not any(line.startswith("namesrvAddr=") for line in lines)  # has no value


def test_the_file_keeps_foreign_keys_that_are_never_shown(
    caplog: pytest.LogCaptureFixture,
) -> None:
    given = {"storePathRootDir": "store", "initAuthenticationUser": "secret", "regionId": "r1"}
    with caplog.at_level(logging.ERROR):
        live = LiveSettings(load_broker_config(given), now_ms=NOW_MS, given=given)
    live.update("regionId=r2\n", NOW_MS)
    assert "initAuthenticationUser" not in live.text()
    assert parse_properties(live.edited(None)) == {**given, "regionId": "r2"}
    assert load_broker_config(live.edited(None)) == live.current


def test_the_file_keeps_its_lines_and_gets_no_defaults() -> None:
    given = {"storePathRootDir": "store", "namesrvAddr": "n:1"}
    content = b"# caf\xe9\nstorePathRootDir = store\nnamesrvAddr=n:1\n"
    live = LiveSettings(load_broker_config(given), now_ms=NOW_MS, given=given)
    assert live.edited(content) == content
    live.update("regionId=r2\nunheardOf=1\n", NOW_MS)
    live.update("fileReservedTime=48\nnamesrvAddr=\n", NOW_MS)
    assert live.edited(content) == (
        b"# caf\xe9\nstorePathRootDir = store\nnamesrvAddr=\nfileReservedTime=48\nregionId=r2\n"
    )
    assert load_broker_config(live.edited(content)) == live.current
