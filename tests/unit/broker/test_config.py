"""Settings of the broker: Java's keys and defaults, who the broker is, and what it refuses."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from skylark.broker.config import (
    ALWAYS_BLACK_LISTED,
    BrokerConfig,
    MetricsExporterType,
    load_broker_config,
)
from skylark.broker.ignored_settings import REFUSED
from skylark.core.config import InvalidConfigError, format_value, settings, to_mapping
from skylark.core.names import Address
from skylark.store.config import BrokerRole, StoreConfig
from skylark.wire.codes import RequestCode
from skylark.wire.command import SerializeType
from tests.unit.broker.tables import RECORDED, live_settings, recorded

HOME = {"user.home": "/var/mq"}


def broker(**texts: str) -> BrokerConfig:
    return load_broker_config({"brokerName": "b", **texts}, variables=HOME)


def problems(**texts: str) -> tuple[str, ...]:
    with pytest.raises(InvalidConfigError) as caught:
        broker(**texts)
    return caught.value.problems


def recorded_settings() -> dict[str, str]:
    """What a real 5.5.0 answered to GET_BROKER_CONFIG."""
    (answer,) = (
        command
        for is_request, command in recorded("admin-getBrokerConfig", RequestCode.GET_BROKER_CONFIG)
        if not is_request
    )
    assert answer.body is not None
    return dict(line.split("=", 1) for line in answer.body.decode().splitlines())


# --- Java's keys ---


def test_a_real_broker_prints_the_same_settings() -> None:
    theirs = recorded_settings()
    assert len(theirs) == 487
    ours = dict(line.split("=", 1) for line in live_settings(**RECORDED).text().splitlines())
    assert {key: ours.get(key) for key in theirs} == theirs


def test_our_own_keys_are_few_and_known() -> None:
    ours = {info.java for info in settings(BrokerConfig)} - {
        info.java for info in settings(StoreConfig)
    }
    not_printed_by_java = {
        "authenticationEnabled",  # Java prints no setting of access control
        "authorizationEnabled",
        "migrateAuthFromV1Enabled",
        "brokerConfigPath",  # has no value in the recording
        "dLegerGroup",
        "dLegerPeers",
        "dLegerSelfId",
        "haMasterAddress",
        "preferredLeaderId",
        "storePathBrokerIdentity",
        "storePathDLedgerCommitLog",
        "storePathEpochFile",
    }
    assert ours - recorded_settings().keys() - not_printed_by_java == {
        "busyPollMicros",
        "connectionCountMax",
        "groupCountMax",
        "haCompatible4x",
        "haSlaveFallbehindMax",  # of 4.x
        "haSyncFromStart",
        "haTruncateAhead",
        "heldPullCountMax",
        "heldSizeMax",
        "pullMaxBytes",
        "requestCountMax",
        "rocketmq.serialize.type",  # a system property in Java
        "slaveSyncInterval",
        "topicCountMax",
        "writeBufferSizeMax",
    }


def test_every_recorded_setting_can_be_loaded_back() -> None:
    theirs = recorded_settings()
    config = load_broker_config(theirs)
    printed = to_mapping(config)
    assert {key: printed[key] for key in theirs} == theirs


def test_defaults_that_clients_and_tools_rely_on() -> None:
    config = broker()
    assert config.listen_port == 10911
    assert config.default_topic_queue_nums == 8
    assert config.auto_create_topic_enable is True
    assert config.enable_property_filter is False
    assert config.transaction_check_interval == 30_000
    assert config.wait_time_mills_in_send_queue == 200
    assert config.consumer_fallbehind_threshold == 17_179_869_184
    assert config.pull_max_bytes == 4 * 1024 * 1024
    assert config.metrics_exporter_type is MetricsExporterType.DISABLE
    assert config.serialize_type is SerializeType.JSON
    assert config.store.store_path_root_dir == Path("/var/mq/store")
    assert config.store.max_message_size == 4 * 1024 * 1024


def test_unknown_keys_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        broker(autoCreateTopicEnabled="true")
    assert "autoCreateTopicEnabled is ignored; did you mean autoCreateTopicEnable?" in caplog.text


# --- identity ---


@pytest.mark.parametrize("role", ["ASYNC_MASTER", "SYNC_MASTER"])
def test_a_master_has_the_id_0_whatever_the_file_says(role: str) -> None:
    config = broker(brokerRole=role, brokerId="3")
    assert (config.broker_id, config.store.broker_role.name) == (0, role)
    assert not config.is_slave


def test_a_slave_needs_an_id_of_its_own() -> None:
    assert problems(brokerRole="SLAVE") == ("brokerId: Slave's brokerId must be > 0",)
    assert problems(brokerRole="SLAVE", brokerId="-1") == ("brokerId: -1 is below 0",)
    config = broker(brokerRole="SLAVE", brokerId="2")
    assert config.is_slave
    assert (config.broker_id, config.store.broker_role) == (2, BrokerRole.SLAVE)


def test_the_host_gives_its_name() -> None:
    assert load_broker_config("", variables={**HOME, "host.name": "mq-1"}).broker_name == "mq-1"
    assert load_broker_config("", variables=HOME).broker_name == "DEFAULT_BROKER"
    assert broker(brokerName="other").broker_name == "other"


@pytest.mark.parametrize(
    ("given", "announced"),
    [
        ({}, "127.0.0.1:10911"),
        ({"bindAddress": "localhost"}, "127.0.0.1:10911"),
        ({"bindAddress": "::1"}, "[::1]:10911"),
        ({"bindAddress": "192.0.2.7", "listenPort": "2000"}, "192.0.2.7:2000"),
        ({"bindAddress": "broker.example"}, "broker.example:10911"),
        ({"bindAddress": "0.0.0.0", "brokerIP1": "192.0.2.9"}, "192.0.2.9:10911"),
        ({"brokerIP1": "192.0.2.9"}, "192.0.2.9:10911"),
    ],
)
def test_what_clients_are_told(given: dict[str, str], announced: str) -> None:
    assert broker(**given).broker_addr == announced


def test_all_addresses_are_none_to_announce() -> None:
    (problem,) = problems(bindAddress="0.0.0.0")
    assert problem.startswith("brokerIP1: bindAddress=0.0.0.0 stands for all addresses")
    variables = {**HOME, "local.address": "192.0.2.5"}
    config = load_broker_config({"bindAddress": "::"}, variables=variables)
    assert config.broker_addr == "192.0.2.5:10911"
    assert not config.is_loopback


def test_only_loopback_is_loopback() -> None:
    assert broker().is_loopback
    assert broker(bindAddress="localhost").is_loopback
    assert not broker(bindAddress="192.0.2.7").is_loopback


def test_ports_that_others_compute() -> None:
    config = broker(listenPort="20911", brokerIP1="192.0.2.1", brokerIP2="192.0.2.2")
    assert (config.fast_port, config.ha_port) == (20909, 20912)
    assert config.ha_server_addr == "192.0.2.2:20912"
    assert to_mapping(config)["haListenPort"] == "20912"
    assert broker(haListenPort="7000").ha_server_addr == "127.0.0.1:7000"
    assert problems(listenPort="2")[0].startswith("listenPort: 2 leaves no room")


def test_a_port_that_was_drawn() -> None:
    config = broker(listenPort="0")
    assert config.listen_port == 0
    drawn = config.listening_on(40_000)
    assert (drawn.listen_port, drawn.fast_port, drawn.ha_port) == (40_000, 39_998, 40_001)
    assert drawn.broker_addr == "127.0.0.1:40000"


def test_name_servers() -> None:
    config = broker(namesrvAddr="192.0.2.1:9876;ns2:9877")
    assert config.namesrv_addresses == (Address("192.0.2.1", 9876), Address("ns2", 9877))
    assert broker().namesrv_addresses == ()
    variables = {**HOME, "NAMESRV_ADDR": "ns:1"}
    assert load_broker_config("", variables=variables).namesrv_addresses == (Address("ns", 1),)
    (problem,) = problems(namesrvAddr="nowhere")
    assert problem.startswith(
        "namesrvAddr: The Name Server Address[nowhere] illegal, please set it as follows,"
        ' "127.0.0.1:9876;192.168.0.1:9876"'
    )


@pytest.mark.parametrize(("period", "used"), [("1", 10_000), ("30000", 30_000), ("99999", 60_000)])
def test_registrations_are_neither_rare_nor_constant(period: str, used: int) -> None:
    assert broker(registerNameServerPeriod=period).register_period_ms == used


def test_names_that_nobody_could_use() -> None:
    assert problems(brokerName=" ", brokerClusterName="a\tb") == (
        "brokerClusterName: 'a\\tb' is not a name",
        "brokerName: '' is not a name",
    )
    assert problems(traceTopicEnable="true", msgTraceTopicName="a b")[0].startswith(
        "msgTraceTopicName: The specified topic: a b, contains illegal characters"
    )
    assert broker(brokerName="host.example.org").broker_name == "host.example.org"


# --- what may not be changed, and what may not be ignored ---


def test_no_path_or_command_can_be_changed_over_the_network() -> None:
    suspicious = ("path", "dir", "home", "file", "command", "script", "plugin", "blacklist")
    harmless = {
        # numbers and switches of files, and files that hold other things
        info.java
        for info in settings(BrokerConfig)
        if info.kind in (int, bool, float)
    }
    found = {
        info.java
        for info in settings(BrokerConfig)
        if any(word in info.java.lower() for word in suspicious)
    } - harmless
    assert found == ALWAYS_BLACK_LISTED
    assert {info.java for info in settings(BrokerConfig) if info.kind is Path} < found


def test_operators_can_forbid_more_but_never_less() -> None:
    config = broker(configBlackList="brokerName;;regionId")
    assert config.black_list == ALWAYS_BLACK_LISTED | {"brokerName", "regionId"}
    assert {"brokerConfigPath", "rocketmqHome", "configBlackList"} < broker().black_list


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_what_is_asked_for_and_not_there_is_refused_by_name(key: str) -> None:
    accepted, reason = REFUSED[key]
    other = "true" if accepted is False else "other"
    assert problems(**{key: other}) == (f"{key}={other}: {reason}",)
    broker(**{key: format_value(accepted) or ""})


@pytest.mark.parametrize(
    ("key", "value"), [("enableControllerMode", "true"), ("storeType", "defaultRocksDB")]
)
def test_the_store_refuses_by_name_too(key: str, value: str) -> None:
    (problem,) = problems(**{key: value})
    assert problem.startswith(f"{key}={value}: ")


def test_locks_by_majority_are_refused_by_name() -> None:
    assert not broker(lockInStrictMode="false").lock_in_strict_mode
    (problem,) = problems(lockInStrictMode="true")
    assert problem.startswith("lockInStrictMode=true: locks on queues are granted by this broker")


def test_exporters_that_do_not_exist_here() -> None:
    (problem,) = problems(metricsExporterType="OTLP_GRPC")
    assert problem == "metricsExporterType: 'OTLP_GRPC' is not one of DISABLE, PROM"


def test_all_that_is_wrong_is_reported_at_once() -> None:
    found = problems(listenPort="70000", brokerPermission="x", defaultTopicQueueNums="0")
    assert [problem.split(":")[0] for problem in found] == [
        "listenPort",
        "brokerPermission",
        "defaultTopicQueueNums",
    ]
