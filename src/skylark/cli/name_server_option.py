"""The option ``-n`` of every command that connects to a cluster.

Without it the address comes from the environment, else it is that of a name server on this machine
(:func:`skylark.core.names.resolve_namesrv`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from skylark.client.core.client_options import ClientOptions

namesrv_option = click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT[;...]",
    help="Name servers.  [default: SKYLARK_NAMESRV, NAMESRV_ADDR, else 127.0.0.1:9876]",
)


def client_options(argument: str | None) -> ClientOptions:
    """Client options for the cluster that ``-n`` names: addresses, or a URL with further options.

    Raises ConfigError if it is neither.
    """
    import os

    from skylark.client.core.client_options import ClientOptions
    from skylark.core.names import LOCAL_NAMESRV, resolve_namesrv

    found = resolve_namesrv(argument, os.environ, default=LOCAL_NAMESRV)
    sources = {"argument": argument, "default": LOCAL_NAMESRV}
    return ClientOptions(namesrv=sources.get(found.source) or os.environ[found.source])
