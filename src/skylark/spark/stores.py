"""Which tasks may read files: where the store of a broker is, as far as the driver can tell.

The user may say so (``storePath``). Otherwise, with ``readMode=auto``, brokers at an address of
this machine are asked for their settings once. Whether a task can read the folder is up to the
task.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Mapping

from skylark.admin.session import Session
from skylark.admin.settings import Settings
from skylark.client.options import local_address
from skylark.core.errors import SkylarkError
from skylark.core.names import parse_address
from skylark.spark.options import SourceOptions
from skylark.spark.survey import choose_address

log = logging.getLogger(__name__)


class StoreFinder:
    """Remembers what brokers said."""

    def __init__(self, session: Session, options: SourceOptions) -> None:
        self._session = session
        self._options = options
        self._paths: dict[str, str | None] = {}

    async def find(self, broker: str, addresses: Mapping[int, str]) -> str | None:
        """The folder of a broker's store; None: it is pulled from."""
        options = self._options
        if options.read_mode == "pull" or options.sql92 is not None:
            return None
        if options.store_path is not None:
            return options.store_path
        address = choose_address(addresses, options.read_from)
        if address is None or not is_here(address):
            return None
        if address not in self._paths:
            self._paths[address] = await self._ask(address)
        return self._paths[address]

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
