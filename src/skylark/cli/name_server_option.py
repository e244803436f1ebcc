"""The option ``-n`` of every command that talks to a cluster, and what it means.

Without it the environment is asked, then a name server on this machine is assumed
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
    """Options of a client of the cluster that ``-n`` names: addresses, or a URL with all it says.

    Raises ConfigError for what is neither.
    """
    import os

    from skylark.client.core.client_options import ClientOptions
    from skylark.core.names import LOCAL_NAMESRV, resolve_namesrv

    found = resolve_namesrv(argument, os.environ, default=LOCAL_NAMESRV)
    sources = {"argument": argument, "default": LOCAL_NAMESRV}
    return ClientOptions(namesrv=sources.get(found.source) or os.environ[found.source])
