"""What ``skylark up`` starts, worked out before anything runs: names, ports, folders, settings.

::

    port        broker i listens on base + 20 i; the fast port is two below, the HA port one above
                its replica r on + 4 r; metrics (--metrics-port, or metricsExporterType=PROM) are
                served on the first port + i, and those of replicas after those of all brokers
    name        broker-a, broker-b, ...; their first replicas are broker-a-1, broker-b-1, ...
    folder      DATA/broker-a, DATA/broker-a-1, ... are stores, DATA/namesrv holds the KV table
    settings    Java's defaults < FRIENDLY < EPHEMERAL < REPLICATED < --config < --set
                < what the plan decides

A replica is a slave: a broker of the same ``brokerName`` with an id of its own.

Port 0 lets every server draw a free one. Clients reach the brokers by the host by which they
reached the name server, so a broker that listens on all addresses needs no address of its own to
announce; the one in message ids is then that of loopback. Where clients have to use another host,
as behind translated addresses, ``brokerIP1`` says which.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase
from typing import Final

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.core.config import unknown_keys
from skylark.core.errors import ConfigError
from skylark.core.names import Address

log = logging.getLogger(__name__)

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10_911
METRICS_PORT: Final = 5_557
PORT_STEP: Final = 20
REPLICA_PORT_STEP: Final = 4
REPLICA_COUNT_MAX: Final = PORT_STEP // REPLICA_PORT_STEP - 1
BROKER_COUNT_MAX: Final = len(ascii_lowercase)
LOOPBACK: Final = "127.0.0.1"
#: Settings that are friendlier than Java's defaults; ``skylark broker`` keeps Java's.
FRIENDLY: Final = {
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
}
#: Small files for a store that is thrown away.
EPHEMERAL: Final = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(3_000 * 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
#: With replicas: they get the whole log, and are read from while their master is away.
REPLICATED: Final = {
    "haSyncFromStart": "true",
    "slaveReadEnable": "true",
}
#: Settings that follow from the options of the command, each with the option.
_DECIDED: Final = {
    "bindAddress": "--host",
    "brokerId": "--replicas",
    "brokerName": "--brokers",
    "brokerRole": "--replicas and --sync",
    "haListenPort": "--broker-port",
    "listenPort": "--broker-port",
    "namesrvAddr": "--namesrv-port",
    "storePathCommitLog": "--data",
    "storePathRootDir": "--data",
}


class BrokerPlace(msgspec.Struct, frozen=True):
    """One broker to be run: ``replica`` 0 is a master, any other a slave of it."""

    index: int
    replica: int = 0

    @property
    def broker_name(self) -> str:
        """What it is registered as, like the others of its group."""
        return f"broker-{ascii_lowercase[self.index]}"

    @property
    def name(self) -> str:
        """What it is called here, like nobody else."""
        return f"{self.broker_name}-{self.replica}" if self.replica else self.broker_name


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; raises ConfigError for what cannot be."""

    data: Path
    ephemeral: bool = False  # small files; whoever made ``data`` removes it
    host: str = LOOPBACK
    namesrv_port: int = NAMESRV_PORT
    broker_port: int = BROKER_PORT
    broker_count: int = 1
    replica_count: int = 0  # of each broker
    sync: bool = False  # a message is acknowledged when all replicas have it
    metrics_port: int | None = None  # of the first broker; None: as the settings say
    settings: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if not 1 <= self.broker_count <= BROKER_COUNT_MAX:
            raise ConfigError(f"--brokers {self.broker_count}: 1 to {BROKER_COUNT_MAX} can be run")
        if not 0 <= self.replica_count <= REPLICA_COUNT_MAX:
            raise ConfigError(
                f"--replicas {self.replica_count}: 0 to {REPLICA_COUNT_MAX} can be run"
            )
        if self.sync and not self.replica_count:
            raise ConfigError("--sync: there is no replica to wait for", hint="add --replicas 1")
        last = BrokerPlace(self.broker_count - 1, self.replica_count)
        highest = self.broker_port + _port_offset(last) + 1
        if self.broker_port and not 3 <= self.broker_port <= highest <= 65_535:
            raise ConfigError(
                f"--broker-port {self.broker_port}: the brokers need ports up to {highest}",
                hint="a port is a number from 3 to 65535, 0 draws a free one",
            )
        if self.metrics_port is not None:
            highest = self.metrics_port + self.broker_count * (1 + self.replica_count) - 1
            if not 1 <= self.metrics_port <= highest <= 65_535:
                raise ConfigError(
                    f"--metrics-port {self.metrics_port}: the brokers need ports up to {highest}",
                    hint="a port is a number from 1 to 65535",
                )
        for key in self.settings:
            if key in _DECIDED:
                raise ConfigError(f"--set {key}: this follows from {_DECIDED[key]}")
        for key, close in unknown_keys(BrokerConfig, self.settings).items():
            known = "`skylark broker -p` prints all"
            hint = known if close is None else f"did you mean {close}? {known}"
            raise ConfigError(f"--set {key}: there is no such setting", hint=hint)

    @property
    def broker_names(self) -> tuple[str, ...]:
        return tuple(place.broker_name for place in self.masters)

    @property
    def masters(self) -> tuple[BrokerPlace, ...]:
        return tuple(BrokerPlace(index) for index in range(self.broker_count))

    @property
    def slaves(self) -> tuple[BrokerPlace, ...]:
        return tuple(
            BrokerPlace(index, replica)
            for index in range(self.broker_count)
            for replica in range(1, self.replica_count + 1)
        )

    def namesrv_settings(self) -> dict[str, str]:
        """The settings of the name server, by their Java names."""
        return {
            "bindAddress": self.host,
            "listenPort": str(self.namesrv_port),
            "kvConfigPath": str(self.data / "namesrv" / "kvConfig.json"),
        }

    def broker_settings(self, place: BrokerPlace, namesrv: Address) -> dict[str, str]:
        """The settings of one broker, by their Java names."""
        texts = {**FRIENDLY, **(EPHEMERAL if self.ephemeral else {})}
        if self.replica_count:
            texts.update(REPLICATED)
        if self.sync:
            texts["inSyncReplicas"] = str(self.replica_count + 1)
        if _is_wildcard(self.host):
            texts["brokerIP1"] = _loopback(self.host)
        texts.update(self.settings)
        if self.metrics_port is not None:
            texts["metricsExporterType"] = "PROM"
        texts["metricsPromExporterPort"] = self._metrics_port(place)
        port = self.broker_port + _port_offset(place) if self.broker_port else 0
        texts.update(
            brokerName=place.broker_name,
            bindAddress=self.host,
            listenPort=str(port),
            namesrvAddr=str(namesrv),
            storePathRootDir=str(self.data / place.name),
        )
        if place.replica:
            texts.update(brokerRole="SLAVE", brokerId=str(place.replica))
        elif self.sync:
            texts["brokerRole"] = "SYNC_MASTER"
        return texts

    def metrics_addresses(self) -> dict[str, Address]:
        """Where ``--metrics-port`` lets metrics be had, by the name of the broker."""
        if self.metrics_port is None:
            return {}
        host = self.settings.get("metricsPromExporterHost") or self.host
        return {
            place.name: within_reach(Address(host, int(self._metrics_port(place))))
            for place in (*self.masters, *self.slaves)
        }

    def _metrics_port(self, place: BrokerPlace) -> str:
        """One for each; what is no port, and 0, which draws one, stay as they are."""
        first = self.settings.get("metricsPromExporterPort", str(METRICS_PORT))
        if self.metrics_port is not None:
            first = str(self.metrics_port)
        if not first.isdecimal() or first == "0":
            return first
        return str(int(first) + place.index + self.broker_count * place.replica)


def settings_of_file(properties: Mapping[str, str], path: Path) -> dict[str, str]:
    """What ``--config`` brings: a file made for one broker is good for all of them.

    What follows from options of the command, such as names and ports, and what no broker knows is
    left out, and the log says so, as Java would.
    """
    decided = sorted(key for key in properties if key in _DECIDED)
    if decided:
        shown = ", ".join(f"{key} ({_DECIDED[key]})" for key in decided)
        log.warning("%s: left out, since options decide: %s", path, shown)
    unknown = unknown_keys(BrokerConfig, properties)
    for key, close in sorted(unknown.items()):
        meant = "" if close is None else f"; did you mean {close}?"
        log.warning("%s: left out, since there is no setting %s%s", path, key, meant)
    return {
        key: value
        for key, value in properties.items()
        if key not in _DECIDED and key not in unknown
    }


def _port_offset(place: BrokerPlace) -> int:
    return PORT_STEP * place.index + REPLICA_PORT_STEP * place.replica


def within_reach(address: Address) -> Address:
    """An address that is listened on, as this machine itself can connect to it."""
    if not _is_wildcard(address.host):
        return address
    return Address(_loopback(address.host), address.port)


def _loopback(wildcard: str) -> str:
    """This machine, as one reaches who listens on all addresses: ``::`` is IPv6 alone."""
    return "::1" if ":" in wildcard else LOOPBACK


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
