"""What ``skylark up`` starts, worked out before anything runs: names, ports, folders, settings.

::

    port        broker i listens on base + 20 i; the fast port is two below, the HA port one above
    folder      DATA/broker-a, DATA/broker-b, ... are stores, DATA/namesrv holds the KV table
    settings    Java's defaults < FRIENDLY < EPHEMERAL < --set < what the plan itself decides

Port 0 lets every server draw a free one. Clients reach the brokers by the host by which they
reached the name server, so a broker that listens on all addresses needs no address of its own to
announce; the one in message ids is then that of loopback.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from pathlib import Path
from string import ascii_lowercase
from typing import Final

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.core.config import unknown_keys
from skylark.core.errors import ConfigError
from skylark.core.names import Address

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10_911
PORT_STEP: Final = 20
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
#: Settings that follow from the options of the command, each with the option.
_DECIDED: Final = {
    "bindAddress": "--host",
    "brokerId": "--brokers",
    "brokerName": "--brokers",
    "brokerRole": "--brokers",
    "listenPort": "--broker-port",
    "namesrvAddr": "--namesrv-port",
    "storePathCommitLog": "--data",
    "storePathRootDir": "--data",
}


class LaunchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asked for; raises ConfigError for what cannot be."""

    data: Path
    ephemeral: bool = False  # small files; whoever made ``data`` removes it
    host: str = LOOPBACK
    namesrv_port: int = NAMESRV_PORT
    broker_port: int = BROKER_PORT
    broker_count: int = 1
    settings: Mapping[str, str] = {}

    def __post_init__(self) -> None:
        if not 1 <= self.broker_count <= BROKER_COUNT_MAX:
            raise ConfigError(f"--brokers {self.broker_count}: 1 to {BROKER_COUNT_MAX} can be run")
        highest = self.broker_port + PORT_STEP * (self.broker_count - 1) + 1
        if self.broker_port and not 3 <= self.broker_port <= highest <= 65_535:
            raise ConfigError(
                f"--broker-port {self.broker_port}: the brokers need ports up to {highest}",
                hint="a port is a number from 3 to 65535, 0 draws a free one",
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
        return tuple(f"broker-{letter}" for letter in ascii_lowercase[: self.broker_count])

    def namesrv_settings(self) -> dict[str, str]:
        """The settings of the name server, by their Java names."""
        return {
            "bindAddress": self.host,
            "listenPort": str(self.namesrv_port),
            "kvConfigPath": str(self.data / "namesrv" / "kvConfig.json"),
        }

    def broker_settings(self, index: int, namesrv: Address) -> dict[str, str]:
        """The settings of one broker, by their Java names."""
        name = self.broker_names[index]
        texts = {**FRIENDLY, **(EPHEMERAL if self.ephemeral else {})}
        if _is_wildcard(self.host):
            texts["brokerIP1"] = LOOPBACK
        texts.update(self.settings)
        port = self.broker_port + PORT_STEP * index if self.broker_port else 0
        texts.update(
            brokerName=name,
            bindAddress=self.host,
            listenPort=str(port),
            namesrvAddr=str(namesrv),
            storePathRootDir=str(self.data / name),
        )
        return texts


def within_reach(address: Address) -> Address:
    """An address that is listened on, as this machine itself can connect to it."""
    return Address(LOOPBACK, address.port) if _is_wildcard(address.host) else address


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False
