"""``skylark ping``: checks that name servers and brokers respond; a health check for containers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import call_admin, duration_s, given_namesrv, namesrv_option
from skylark.cli.exit_codes import ExitCode

if TYPE_CHECKING:
    from skylark.admin.admin_client import Admin
    from skylark.admin.health import HealthReport

COLUMNS = ("server", "role", "address", "answer_ms", "problem")


@click.command("ping", epilog="Example: skylark ping --timeout 2s || echo down")
@namesrv_option
@click.option("--timeout", metavar="TIME", default="3s", help="Timeout of each request.")
@click.option("--namesrv-only", is_flag=True, help="Check only name servers, no brokers.")
@click.option("--broker", metavar="HOST:PORT", help="Check only this broker, no name servers.")
@click.option("-q", "--quiet", is_flag=True, help="Print nothing; only set the exit code.")
@click.pass_context
def command(
    ctx: click.Context,
    timeout: str,
    namesrv_only: bool,
    broker: str | None,
    quiet: bool,
) -> None:
    """Check whether name servers and brokers respond.

    Exit code 0 if all of them do, and 3 if one does not, or if no broker is registered.
    """
    if broker is not None and (given_namesrv() is not None or namesrv_only):
        raise click.UsageError("--broker uses no name server: leave out -n and --namesrv-only")
    context: CliContext = ctx.obj
    context.configure_logging("error")  # the result lists servers that do not respond

    async def check(admin: Admin) -> HealthReport:
        from skylark.admin.health import check_broker, check_health
        from skylark.core.names import parse_address

        if broker is not None:
            return await check_broker(admin.session, str(parse_address(broker)))
        return await check_health(admin.session, with_brokers=not namesrv_only)

    timeout_s = duration_s(timeout, "--timeout")
    if not timeout_s:
        raise click.BadParameter("must be more than 0", param_hint="--timeout")
    report = call_admin(check, timeout_s=timeout_s)
    if not quiet:
        context.output.rows(COLUMNS, report.servers)
    if broker is not None:
        if report.servers[0].answer_ms is None:
            ctx.exit(ExitCode.UNREACHABLE)
    elif not (report.has_name_servers if namesrv_only else report.is_healthy):
        if report.has_name_servers and not quiet:
            missing = [server.server for server in report.servers if server.answer_ms is None]
            about = (
                f"no response from {', '.join(missing)}" if missing else "no broker is registered"
            )
            context.output.info(about)
        ctx.exit(ExitCode.UNREACHABLE)
