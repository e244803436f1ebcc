"""Connection options that source and sink share: name servers and credentials.

Readers and writers pickle a :class:`Connection` to the tasks, so it is small and plain, and keeps
its name and fields. The driver takes the name servers from the option or from *its* environment:
executors need not have the variable. Secrets are in no ``repr`` and in no error.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from skylark.core.errors import ConfigError
from skylark.core.names import NAMESRV_VARIABLES
from skylark.spark.option_table import Option, text_of


def _no_tls(text: str) -> bool:
    if text.lower() in ("", "false"):
        return False
    raise ValueError("connections with TLS are not supported yet; leave it out")


CONNECTION_OPTIONS: Final = (
    Option(
        "nameServer",
        text_of("host:port;host:port"),
        ("nameServers", "namesrvAddr", "kafka.bootstrap.servers", "bootstrap.servers"),
    ),
    Option("accessKey", text_of("an access key"), secret=True),
    Option("secretKey", text_of("a secret key"), secret=True),
    Option("securityToken", text_of("a token"), secret=True),
    Option("tls.enable", _no_tls, ("tls.enabled",)),
)


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Name servers and credentials of a cluster."""

    name_server: str
    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None

    def __repr__(self) -> str:
        signed = "" if self.access_key is None else ", signed"
        return f"Connection({self.name_server.rpartition('@')[2]}{signed})"


def make_connection(
    values: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> Connection:
    """A connection from the given :data:`CONNECTION_OPTIONS`; raises ConfigError."""
    environ = os.environ if environ is None else environ
    found = values.get("nameServer")
    for name in NAMESRV_VARIABLES:
        found = found or environ.get(name, "").strip()
    if not found:
        raise ConfigError(
            "no name server is given",
            hint='give its address, .option("nameServer", "host:9876"), or set'
            f" {NAMESRV_VARIABLES[-1]} for the driver",
        )
    access_key, secret_key = values.get("accessKey"), values.get("secretKey")
    if (access_key is None) != (secret_key is None):
        raise ConfigError("accessKey and secretKey belong together", hint="give both or none")
    return Connection(
        name_server=found if "://" in found else found.replace(",", ";"),
        access_key=access_key,
        secret_key=secret_key,
        security_token=values.get("securityToken"),
    )
