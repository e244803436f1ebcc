"""What ``-n`` and the environment come to, and which exit codes errors of tools have."""

from __future__ import annotations

import pytest

from skylark.admin.errors import NoBrokerError, NotFoundError, PartialFailureError
from skylark.cli.exit_codes import ExitCode, exit_code
from skylark.cli.name_server_option import client_options
from skylark.core.errors import ConfigError
from skylark.core.names import NAMESRV_VARIABLES


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
