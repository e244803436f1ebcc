"""Times, places and pairs of the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click
import pytest

from skylark.admin.errors import NoBrokerError, NotFoundError, PartialFailureError
from skylark.cli.command_helpers import (
    client_options,
    format_time,
    key_value,
    parse_position,
    parse_time,
)
from skylark.cli.exit_codes import ExitCode, exit_code
from skylark.core.errors import ConfigError
from skylark.core.names import NAMESRV_VARIABLES


def test_times() -> None:
    assert parse_time("2026-11-01T08:00+00:00", "--from") == datetime(2026, 11, 1, 8, tzinfo=UTC)
    local = parse_time("2026-11-01", "--from")
    assert (local.replace(tzinfo=None), local.tzinfo is None) == (datetime(2026, 11, 1), False)  # noqa: DTZ001
    for text, ago in (("30m", timedelta(minutes=30)), ("1.5h", timedelta(hours=1.5))):
        assert abs(datetime.now(UTC) - ago - parse_time(text, "--from")) < timedelta(seconds=30)


@pytest.mark.parametrize("text", ["", "now", "30", "2026-02-30", "-1h", "1w", "10000-01-01"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(click.BadParameter, match="is neither a time such as"):
        parse_time(text, "--from")


def test_places() -> None:
    for text, found in (("earliest", "earliest"), ("beginning", "earliest"), ("end", "latest")):
        assert parse_position(text, "--to") == found
    assert parse_position("17", "--to") == 17
    assert isinstance(parse_position("1h", "--to"), datetime)
    for text in ("middle", "9" * 19, "-1"):
        with pytest.raises(click.BadParameter, match="is not earliest, latest"):
            parse_position(text, "--to")


def test_pairs() -> None:
    assert key_value("a=b=c", "--set") == ("a", "b=c")
    assert key_value(" a =", "--set") == ("a", "")
    for text in ("a", "=b", ""):
        with pytest.raises(click.BadParameter, match="is not KEY=VALUE"):
            key_value(text, "--set")


def test_times_are_shown_with_their_offset() -> None:
    shown = format_time(1_700_000_000_123)
    assert shown is not None
    assert datetime.fromisoformat(shown) == datetime.fromtimestamp(1_700_000_000.123, tz=UTC)
    assert format_time(None) is None


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMESRV_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def test_a_url_keeps_credentials_and_namespace() -> None:
    endpoint = client_options("rocketmq://ak:s%40k@h:1,i:2/ns").endpoint()
    assert [str(address) for address in endpoint.namesrv] == ["h:1", "i:2"]
    assert (endpoint.access_key, endpoint.secret_key) == ("ak", "s@k")
    assert endpoint.namespace == "ns"


def test_the_first_source_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert client_options(None).namesrv == "127.0.0.1:9876"
    monkeypatch.setenv("NAMESRV_ADDR", "rocketmq://ak:sk@old:1")
    assert client_options(" ").endpoint().access_key == "ak"
    monkeypatch.setenv("SKYLARK_NAMESRV", "new:1")
    assert client_options(None).namesrv == "new:1"
    assert client_options("given:1").namesrv == "given:1"
    with pytest.raises(ConfigError, match="name server from argument"):
        client_options("nowhere:x")


def test_exit_codes_of_tools() -> None:
    assert exit_code(NotFoundError("x")) is ExitCode.NOT_FOUND
    assert exit_code(NoBrokerError("x")) is ExitCode.UNREACHABLE
    assert exit_code(PartialFailureError([])) is ExitCode.FAILED
