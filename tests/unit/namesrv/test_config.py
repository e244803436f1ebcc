"""Settings of the name server: Java's keys and defaults, the black list, loopback."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from skylark.core.config import InvalidConfigError, load, to_mapping, to_properties
from skylark.namesrv.config import NamesrvConfig
from skylark.wire.command import SerializeType
from skylark.wire.frame import decode_frame

FRAMES = Path(__file__).parents[2] / "golden" / "data" / "frames"

#: What the recorded name server was told by its file and environment.
TOLD = """
bindAddress=127.0.0.1
listenPort=29876
configStorePath=ns.conf
kvConfigPath=./namesrv/kvConfig.json
rocketmqHome=home
"""


def recorded_settings() -> dict[str, str]:
    """The answer of a real 5.5.0 to GET_NAMESRV_CONFIG."""
    lines = (FRAMES / "admin-getNamesrvConfig.jsonl").read_text().splitlines()
    answers = [json.loads(line) for line in lines]
    (raw,) = [each["raw"] for each in answers if each.get("request_code") == 319]
    body = decode_frame(base64.b64decode(raw)).body or b""
    return dict(line.split("=", 1) for line in body.decode().splitlines())


def test_all_keys_and_defaults_of_java() -> None:
    recorded = recorded_settings()
    assert len(recorded) == 40
    ours = to_mapping(load(NamesrvConfig, TOLD))
    # A path loses a leading "./" on its way through pathlib; it is the same path.
    ours["kvConfigPath"] = f"./{ours['kvConfigPath']}"
    assert {key: ours.get(key) for key in recorded} == recorded


def test_keys_of_our_own() -> None:
    assert to_mapping(load(NamesrvConfig)).keys() - recorded_settings().keys() == {
        "brokerCountMax",
        "connectionCountMax",
        "kvSizeMax",
        "rocketmq.serialize.type",
        "topicCountMax",
    }


def test_default_paths_are_in_the_home_of_the_user() -> None:
    config = load(NamesrvConfig, variables={"user.home": "/users/u", "ROCKETMQ_HOME": "/opt/mq"})
    assert config.kv_config_path == Path("/users/u/namesrv/kvConfig.json")
    assert config.config_store_path == Path("/users/u/namesrv/namesrv.properties")
    assert config.rocketmq_home == "/opt/mq"


def test_a_file_for_java_loads() -> None:
    config = load(
        NamesrvConfig,
        "listenPort = 1\nsupportActingMaster=true\nserverWorkerThreads=99\n"
        "rocketmq.serialize.type=ROCKETMQ\nunknownToUs=1\n",
    )
    assert (config.listen_port, config.support_acting_master) == (1, True)
    assert "serverWorkerThreads=99\n" in to_properties(config)
    assert config.serialize_type is SerializeType.ROCKETMQ


@pytest.mark.parametrize(
    "text", ["listenPort=65536", "listenPort=-1", "listenPort=x", "scanNotActiveBrokerInterval=0"]
)
def test_impossible_values_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=text.partition("=")[0]):
        load(NamesrvConfig, text)


def test_black_list_holds_what_java_adds_by_itself() -> None:
    assert load(NamesrvConfig, "configBlackList=a;b;").black_list == {
        "a",
        "b",
        "configBlackList",
        "configStorePath",
        "kvConfigPath",
        "rocketmqHome",
    }


@pytest.mark.parametrize(
    ("address", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("broker.example", False),
    ],
)
def test_loopback(address: str, loopback: bool) -> None:
    assert NamesrvConfig(bind_address=address).is_loopback is loopback


def test_printed_text_is_sorted_and_loads_again() -> None:
    config = load(NamesrvConfig, TOLD)
    text = to_properties(config)
    assert text.splitlines() == sorted(text.splitlines())
    assert load(NamesrvConfig, text) == config
