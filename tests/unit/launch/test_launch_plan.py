"""What is worked out before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.broker.config import load_broker_config
from skylark.core.errors import ConfigError
from skylark.core.names import Address
from skylark.launch.launch_plan import METRICS_PORT, BrokerPlace, LaunchOptions, within_reach

DATA = Path("/data")
NAMESRV = Address("127.0.0.1", 9876)


def options(**given: Any) -> LaunchOptions:
    return LaunchOptions(**{"data": DATA, **given})


def test_brokers_have_names_ports_and_folders_of_their_own() -> None:
    three = options(broker_count=3)
    assert three.broker_names == ("broker-a", "broker-b", "broker-c")
    configs = [
        load_broker_config(three.broker_settings(BrokerPlace(index), NAMESRV)) for index in range(3)
    ]
    assert [config.broker_name for config in configs] == list(three.broker_names)
    assert [(c.fast_port, c.listen_port, c.ha_port) for c in configs] == [
        (10909, 10911, 10912), (10929, 10931, 10932), (10949, 10951, 10952),
    ]  # fmt: skip
    assert [config.store.store_path_root_dir for config in configs] == [
        DATA / "broker-a", DATA / "broker-b", DATA / "broker-c",
    ]  # fmt: skip
    assert {config.namesrv_addr for config in configs} == {"127.0.0.1:9876"}


def test_replicas_are_slaves_on_ports_of_their_own() -> None:
    plan = options(broker_count=2, replica_count=2, sync=True)
    assert [place.name for place in plan.slaves] == [
        "broker-a-1", "broker-a-2", "broker-b-1", "broker-b-2",
    ]  # fmt: skip
    master = load_broker_config(plan.broker_settings(BrokerPlace(1), NAMESRV))
    assert (master.store.broker_role.name, master.replication.in_sync_replicas) == (
        "SYNC_MASTER", 3,
    )  # fmt: skip
    assert master.replication.ha_sync_from_start
    slave = load_broker_config(plan.broker_settings(BrokerPlace(1, 2), NAMESRV))
    assert (slave.broker_name, slave.broker_id, slave.is_slave) == ("broker-b", 2, True)
    assert (slave.fast_port, slave.listen_port, slave.ha_port) == (10937, 10939, 10940)
    assert slave.store.store_path_root_dir == DATA / "broker-b-2"
    assert slave.slave_read_enable
    alone = load_broker_config(options(replica_count=1).broker_settings(BrokerPlace(0), NAMESRV))
    assert (alone.store.broker_role.name, alone.replication.in_sync_replicas) == (
        "ASYNC_MASTER", 1,
    )  # fmt: skip


def test_metrics_have_a_port_for_each_broker() -> None:
    def ports(plan: LaunchOptions) -> dict[str, str]:
        return {
            place.name: plan.broker_settings(place, NAMESRV)["metricsPromExporterPort"]
            for place in (*plan.masters, *plan.slaves)
        }

    assert ports(options(broker_count=2, replica_count=2)) == {
        "broker-a": "5557",
        "broker-b": "5558",
        "broker-a-1": "5559",
        "broker-a-2": "5561",
        "broker-b-1": "5560",
        "broker-b-2": "5562",
    }
    chosen = options(broker_count=2, settings={"metricsPromExporterPort": "7000"})
    assert ports(chosen) == {"broker-a": "7000", "broker-b": "7001"}
    drawn = options(broker_count=2, settings={"metricsPromExporterPort": "0"})
    assert ports(drawn) == {"broker-a": "0", "broker-b": "0"}
    wanted = options(broker_count=2, replica_count=1, metrics_port=7000)
    assert {name: str(place) for name, place in wanted.metrics_addresses().items()} == {
        "broker-a": "127.0.0.1:7000",
        "broker-b": "127.0.0.1:7001",
        "broker-a-1": "127.0.0.1:7002",
        "broker-b-1": "127.0.0.1:7003",
    }
    assert list(ports(wanted).values()) == ["7000", "7001", "7002", "7003"]
    slave = load_broker_config(wanted.broker_settings(wanted.slaves[1], NAMESRV))
    assert slave.metrics_exporter_type.name == "PROM"
    assert chosen.metrics_addresses() == {}
    java = load_broker_config({"storePathRootDir": "/data"})
    assert java.metrics_prom_exporter_port == METRICS_PORT


def test_replicas_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="--replicas 5: must be 0 to 4"):
        options(replica_count=5)
    with pytest.raises(ConfigError, match="needs a replica"):
        options(sync=True)
    with pytest.raises(ConfigError, match="need ports up to 65536"):
        options(broker_port=65_531, replica_count=1)


def test_port_0_is_drawn_by_each() -> None:
    two = options(broker_count=2, broker_port=0)
    assert [
        two.broker_settings(BrokerPlace(index), NAMESRV)["listenPort"] for index in range(2)
    ] == ["0", "0"]


def test_friendly_settings_can_be_changed() -> None:
    config = load_broker_config(options().broker_settings(BrokerPlace(0), NAMESRV))
    assert (config.enable_property_filter, config.recall_message_enable) == (True, True)
    assert config.trace_topic_enable
    given = {"enablePropertyFilter": "false", "maxMessageSize": "1000"}
    config = load_broker_config(options(settings=given).broker_settings(BrokerPlace(0), NAMESRV))
    assert (config.enable_property_filter, config.store.max_message_size) == (False, 1000)


def test_a_store_to_be_thrown_away_has_small_files() -> None:
    store = load_broker_config(
        options(ephemeral=True).broker_settings(BrokerPlace(0), NAMESRV)
    ).store
    assert store.mapped_file_size_commit_log == 16 << 20
    assert store.consume_queue_file_size == 60_000
    kept = load_broker_config(options().broker_settings(BrokerPlace(0), NAMESRV)).store
    assert kept.mapped_file_size_commit_log == 1 << 30


def test_a_broker_on_all_addresses_has_one_in_its_message_ids() -> None:
    for host, announced in (
        ("0.0.0.0", "127.0.0.1"),
        ("::", "::1"),
        ("127.0.0.3", "127.0.0.3"),
    ):
        config = load_broker_config(options(host=host).broker_settings(BrokerPlace(0), NAMESRV))
        assert (config.bind_address, config.broker_ip1) == (host, announced)
    given = {"brokerIP1": "10.0.0.1"}
    assert (
        options(host="::", settings=given).broker_settings(BrokerPlace(0), NAMESRV)["brokerIP1"]
        == "10.0.0.1"
    )
    assert within_reach(Address("::", 5)) == Address("::1", 5)
    assert within_reach(Address("0.0.0.0", 5)) == Address("127.0.0.1", 5)
    assert within_reach(Address("127.0.0.3", 5)) == Address("127.0.0.3", 5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"broker_count": 0}, "--brokers 0: must be 1 to 26"),
        ({"broker_count": 27}, "--brokers 27: must be 1 to 26"),
        ({"broker_port": 2}, "--broker-port 2: the brokers need ports up to 3"),
        ({"broker_port": 65_535}, "--broker-port 65535: the brokers need ports up to 65536"),
        ({"broker_port": 65_530, "broker_count": 2}, "the brokers need ports up to 65551"),
        (
            {"settings": {"listenPort": "1"}},
            "--set listenPort: --broker-port determines this setting",
        ),
        (
            {"settings": {"maxMesageSize": "1"}},
            "--set maxMesageSize: this setting does not exist: did you mean maxMessageSize?",
        ),
        (
            {"settings": {"x": "1"}},
            "--set x: this setting does not exist: skylark broker -p prints all",
        ),
    ],
)
def test_what_cannot_be_is_said(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        options(**given)
    assert message in str(caught.value)
