"""Finder of store folders: decides for which brokers tasks may read files instead of pulling.

With ``storePath`` it is that folder. Otherwise, with ``readMode=auto``, brokers at an address of
this machine are asked once for their settings. Whether a task can really read the folder is found
out by the task.

Compacted topics are always pulled: the log still has messages that the broker no longer delivers.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping
from typing import Final

from skylark.admin.admin_session import Session
from skylark.admin.server_settings import Settings
from skylark.admin.topic_configs import topic_config
from skylark.client.core.client_options import local_address
from skylark.core.errors import SkylarkError
from skylark.core.names import parse_address
from skylark.spark.source.queue_bounds import choose_address
from skylark.spark.source.source_options import SourceOptions

log = logging.getLogger(__name__)

_POLICY: Final = "cleanup.policy"


class StoreFinder:
    """Asks brokers for their store folder and caches the answers."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._paths: dict[str, str | None] = {}
        self._compacted: dict[tuple[str, str], bool] = {}

    async def find(self, topic: str, addresses: Mapping[int, str]) -> str | None:
        """The store folder of the broker with these addresses; None to pull from it.

        ``topic`` has its namespace.
        """
        options = self._options
        if options.read_mode == "pull" or options.sql92 is not None:
            return None
        address = choose_address(addresses, options.read_from)
        path = options.store_path
        if path is None and address is not None and is_local(address):
            if address not in self._paths:
                self._paths[address] = await self._ask_path(address)
            path = self._paths[address]
        if path is None or address is None:
            return path
        key = address, topic
        if key not in self._compacted:
            is_compacted = await self._is_compacted(address, topic)
            if is_compacted is None:
                return None
            self._compacted[key] = is_compacted
        return None if self._compacted[key] else path

    async def _is_compacted(self, address: str, topic: str) -> bool | None:
        """Whether the topic is compacted; None if the broker does not answer."""
        try:
            config = await topic_config(self._session, address, topic)
        except SkylarkError as error:
            log.info(
                "cannot get the attributes of topic %s from broker %s: %s", topic, address, error
            )
            return None
        policies = {config.attributes.get(name) for name in (_POLICY, f"+{_POLICY}")}
        return "COMPACTION" in policies

    async def _ask_path(self, address: str) -> str | None:
        try:
            report = await Settings(self._session).brokers(broker=address)
        except SkylarkError as error:
            log.info("cannot get the store folder of broker %s: %s", address, error)
            return None
        settings = report.servers[0].settings
        path = settings.get("storePathRootDir", "")
        log_path = settings.get("storePathCommitLog", "")
        if log_path not in ("", f"{path}/commitlog"):
            return None  # the log is elsewhere
        return path or None


def is_local(address: str) -> bool:
    """Whether ``host:port`` is an address of this machine: loopback or its own address."""
    host = parse_address(address)[0]
    if host in ("localhost", local_address()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
