"""Which tasks may read files: where the store of a broker is, as far as the driver can tell.

The user may say so (``storePath``). Otherwise, with ``readMode=auto``, brokers at an address of
this machine are asked for their settings once. Whether a task can read the folder is up to the
task.

Compacted topics are pulled: the log still has what a broker does not hand out any more.
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
    """Remembers what brokers said."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._paths: dict[str, str | None] = {}
        self._compacted: dict[tuple[str, str], bool] = {}

    async def find(self, topic: str, addresses: Mapping[int, str]) -> str | None:
        """The folder of the store of a broker with these addresses; None: it is pulled from.

        ``topic`` is named as brokers know it.
        """
        options = self._options
        if options.read_mode == "pull" or options.sql92 is not None:
            return None
        address = choose_address(addresses, options.read_from)
        path = options.store_path
        if path is None and address is not None and is_here(address):
            if address not in self._paths:
                self._paths[address] = await self._ask(address)
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
        """None if the broker does not say."""
        try:
            config = await topic_config(self._session, address, topic)
        except SkylarkError as error:
            log.info("broker %s does not say how it keeps topic %s: %s", address, topic, error)
            return None
        policies = {config.attributes.get(name) for name in (_POLICY, f"+{_POLICY}")}
        return "COMPACTION" in policies

    async def _ask(self, address: str) -> str | None:
        try:
            report = await Settings(self._session).brokers(broker=address)
        except SkylarkError as error:
            log.info("broker %s does not say where its store is: %s", address, error)
            return None
        settings = report.servers[0].settings
        path = settings.get("storePathRootDir", "")
        log_path = settings.get("storePathCommitLog", "")
        if log_path not in ("", f"{path}/commitlog"):
            return None  # the log is elsewhere
        return path or None


def is_here(address: str) -> bool:
    """Whether ``host:port`` is on this machine, for all one can see."""
    host = parse_address(address)[0]
    if host in ("localhost", local_address()):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
