"""Settings of Java's TLS are refused by name: ignoring them would leave a server in the clear."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from skylark import testing
from skylark.broker.config import BrokerConfig, load_broker_config
from skylark.core.config import load, with_changes
from skylark.core.errors import ConfigError
from skylark.launch.launch_plan import LaunchOptions, settings_of_file
from skylark.namesrv.config import NamesrvConfig

ASKING = {
    "tls.enable": "true",
    "tls.server.mode": "permissive",
    "tls.server.keyPath": "/etc/tls/server.key",
    "tls.config.file": "/etc/tls/tls.properties",
}
NOT_ASKING = {"tls.enable": "false", "tls.server.mode": "disabled", "tls.server.keyPath": ""}
HERE = {"brokerIP1": "127.0.0.1", "storePathRootDir": "/b"}


def broker(given: dict[str, str]) -> object:
    return load_broker_config({**HERE, **given})


def name_server(given: dict[str, str]) -> object:
    return load(NamesrvConfig, given)


def change(given: dict[str, str]) -> object:
    return with_changes(load(BrokerConfig, HERE), given)


def file_of_up(given: dict[str, str]) -> object:
    return settings_of_file(given, Path("broker.conf"))


def option_of_up(given: dict[str, str]) -> object:
    return LaunchOptions(data=Path("data"), settings=given)


def broker_for_tests(given: dict[str, str]) -> object:
    return asyncio.run(testing.broker(given).__aenter__())


READINGS = [broker, name_server, change, file_of_up, option_of_up, broker_for_tests]


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize("key", ASKING)
def test_tls_is_refused_by_name(reading: object, key: str) -> None:
    assert callable(reading)
    with pytest.raises(ConfigError, match=f"{key}: TLS is not built yet"):
        reading({key: ASKING[key]})


@pytest.mark.parametrize("reading", [broker, name_server])
def test_a_file_that_switches_it_off_loads(
    reading: object, caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(reading)
    with caplog.at_level(logging.WARNING):
        reading(NOT_ASKING)
    assert len(caplog.records) == len(NOT_ASKING)  # unknown, and without effect
