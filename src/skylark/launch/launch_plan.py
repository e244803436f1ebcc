"""The plan of ``skylark up``: names, ports, folders and settings of all servers.

::

    port        broker i listens on base + 20 i; the fast port is two below, the HA port one above
                its replica r on + 4 r; metrics (--metrics-port, or metricsExporterType=PROM) are
                served on the first port + i, and those of replicas after those of all brokers
    name        broker-a, broker-b, ...; their first replicas are broker-a-1, broker-b-1, ...
    folder      DATA/broker-a, DATA/broker-a-1, ... are stores, DATA/namesrv holds the KV table
    settings    Java's defaults < FRIENDLY < EPHEMERAL < REPLICATED < --config < --set
                < settings of the plan

A replica is a slave: a broker with the same ``brokerName`` and another id.

With port 0 every server chooses a free one. Clients connect to brokers at the host at which they
reached the name server, so a broker that listens on all addresses needs no announced address;
message ids then contain the loopback address. If clients must use another host, for example behind
address translation, set ``brokerIP1``.
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
from skylark.core.config import tls_problem, unknown_keys
from skylark.core.errors import ConfigError
from skylark.core.names import Address

logger = logging.getLogger(__name__)

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10_911
METRICS_PORT: Final = 5_557
PORT_STEP: Final = 20
REPLICA_PORT_STEP: Final = 4
REPLICA_COUNT_MAX: Final = PORT_STEP // REPLICA_PORT_STEP - 1
BROKER_COUNT_MAX: Final = len(ascii_lowercase)
LOOPBACK: Final = "127.0.0.1"
#: Settings for local use instead of Java's defaults; ``skylark broker`` has Java's.
FRIENDLY: Final = {
    "enablePopBufferMerge": "true",
    "enablePropertyFilter": "true",
    "recallMessageEnable": "true",
    "traceTopicEnable": "true",
}
#: Small files for a temporary store.
EPHEMERAL: Final = {
    "mappedFileSizeCommitLog": str(16 << 20),
    "mappedFileSizeConsumeQueue": str(3_000 * 20),
    "maxHashSlotNum": "50000",
    "maxIndexNum": "200000",
}
#: With replicas: they copy the whole log, and serve reads while their master is down.
REPLICATED: Final = {
    "haSyncFromStart": "true",
    "slaveReadEnable": "true",
}
#: Settings that options of the command determine, with the option.
DECIDED: Final = {
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
    """One broker of the plan: ``replica`` 0 is a master, others are its slaves."""

    index: int
    replica: int = 0

    @property
    def broker_name(self) -> str:
        """The broker name it registers with, shared by master and slaves."""
        return f"broker-{ascii_lowercase[self.index]}"

    @property
    def name(self) -> str:
        """Its unique name in this cluster."""
        return f"{self.broker_name}-{self.replica}" if self.replica else self.broker_name


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of ``skylark up``; raises ConfigError for invalid ones."""

    data: Path
    ephemeral: bool = False  # small files; the caller removes ``data``
    host: str = LOOPBACK
    namesrv_port: int = NAMESRV_PORT
    broker_port: int = BROKER_PORT
    broker_count: int = 1
    replica_count: int = 0  # per broker
    sync: bool = False  # acknowledge a message after all replicas have it
    metrics_port: int | None = None  # of the first broker; None: from the settings
    settings: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if not 1 <= self.broker_count <= BROKER_COUNT_MAX:
            raise ConfigError(f"--brokers {self.broker_count}: must be 1 to {BROKER_COUNT_MAX}")
        if not 0 <= self.replica_count <= REPLICA_COUNT_MAX:
            raise ConfigError(f"--replicas {self.replica_count}: must be 0 to {REPLICA_COUNT_MAX}")
        if self.sync and not self.replica_count:
            raise ConfigError("--sync needs a replica", hint="add --replicas 1")
        last = BrokerPlace(self.broker_count - 1, self.replica_count)
        highest = self.broker_port + _port_offset(last) + 1
        if self.broker_port and not 3 <= self.broker_port <= highest <= 65_535:
            raise ConfigError(
                f"--broker-port {self.broker_port}: the brokers need ports up to {highest}",
                hint="a port is a number from 3 to 65535, 0 chooses a free one",
            )
        if self.metrics_port is not None:
            highest = self.metrics_port + self.broker_count * (1 + self.replica_count) - 1
            if not 1 <= self.metrics_port <= highest <= 65_535:
                raise ConfigError(
                    f"--metrics-port {self.metrics_port}: the brokers need ports up to {highest}",
                    hint="a port is a number from 1 to 65535",
                )
        for key in self.settings:
            if key in DECIDED:
                raise ConfigError(f"--set {key}: {DECIDED[key]} determines this setting")
        for key, close in unknown_keys(BrokerConfig, self.settings).items():
            if (problem := tls_problem(key, self.settings[key])) is not None:
                raise ConfigError(f"--set {problem}")
            known = "skylark broker -p prints all"
            hint = known if close is None else f"did you mean {close}? {known}"
            raise ConfigError(f"--set {key}: this setting does not exist", hint=hint)

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
        """Addresses of the metrics endpoints of ``--metrics-port``, by broker."""
        if self.metrics_port is None:
            return {}
        host = self.settings.get("metricsPromExporterHost") or self.host
        return {
            place.name: within_reach(Address(host, int(self._metrics_port(place))))
            for place in (*self.masters, *self.slaves)
        }

    def _metrics_port(self, place: BrokerPlace) -> str:
        """The metrics port of a broker; invalid values and 0 (choose one) are returned
        unchanged."""
        first = self.settings.get("metricsPromExporterPort", str(METRICS_PORT))
        if self.metrics_port is not None:
            first = str(self.metrics_port)
        if not first.isdecimal() or first == "0":
            return first
        return str(int(first) + place.index + self.broker_count * place.replica)


def settings_of_file(properties: Mapping[str, str], path: Path) -> dict[str, str]:
    """The settings of ``--config``, a file for one broker that applies to all of them.

    Ignores settings that options of the command determine, such as names and ports, and unknown
    settings, and logs a warning for each, as Java does.
    """
    decided = sorted(key for key in properties if key in DECIDED)
    if decided:
        shown = ", ".join(f"{key} ({DECIDED[key]})" for key in decided)
        logger.warning("%s: ignoring settings that options determine: %s", path, shown)
    unknown = unknown_keys(BrokerConfig, properties)
    for key in unknown:
        if (problem := tls_problem(key, properties[key])) is not None:
            raise ConfigError(f"{path}: {problem}")
    for key, close in sorted(unknown.items()):
        meant = "" if close is None else f"; did you mean {close}?"
        logger.warning("%s: ignoring unknown setting %s%s", path, key, meant)
    return {
        key: value for key, value in properties.items() if key not in DECIDED and key not in unknown
    }


def _port_offset(place: BrokerPlace) -> int:
    return PORT_STEP * place.index + REPLICA_PORT_STEP * place.replica


def within_reach(address: Address) -> Address:
    """A listen address as an address to which this machine can connect."""
    if not _is_wildcard(address.host):
        return address
    return Address(_loopback(address.host), address.port)


def _loopback(wildcard: str) -> str:
    """The loopback address for a wildcard listen address; ``::`` is IPv6 only."""
    return "::1" if ":" in wildcard else LOOPBACK


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
