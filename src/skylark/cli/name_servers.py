"""The option ``-n`` of every command that talks to a cluster, and what it means.

Without it the environment is asked, then a name server on this machine is assumed
(:func:`skylark.core.names.resolve_namesrv`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from skylark.core.names import Address

namesrv_option = click.option(
    "-n",
    "--namesrv",
    metavar="HOST:PORT[;...]",
    help="Name servers.  [default: SKYLARK_NAMESRV, NAMESRV_ADDR, else 127.0.0.1:9876]",
)


def resolve(argument: str | None) -> tuple[Address, ...]:
    """The addresses of the name servers; raises ConfigError."""
    import os

    from skylark.core.names import LOCAL_NAMESRV, resolve_namesrv

    return resolve_namesrv(argument, os.environ, default=LOCAL_NAMESRV).namesrv
