"""Who a client is and where it connects to."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest

from skylark.client.core.client_options import ClientOptions, local_address, seconds
from skylark.core.errors import ConfigError
from skylark.core.names import Address


@pytest.mark.spec("client.8.1")
def test_the_client_id_names_address_instance_unit_and_stream() -> None:
    options = ClientOptions(client_ip="10.0.0.1", instance_name="a", unit_name="u")
    assert options.client_id(stream=True) == "10.0.0.1@a@u@STREAM"
    assert options.client_id() == "10.0.0.1@a@u"


def test_clients_without_a_name_are_told_apart_unless_they_broadcast() -> None:
    options = ClientOptions(client_ip="10.0.0.1")
    first, second = options.client_id(), options.client_id()
    assert first != second
    assert first.startswith(f"10.0.0.1@{os.getpid()}#")
    assert options.client_id(keep_default=True) == "10.0.0.1@DEFAULT"


def test_an_address_of_this_machine_is_found() -> None:
    address = local_address()
    assert ClientOptions().client_id(keep_default=True) == f"{address}@DEFAULT"
    assert address.strip("[]")


def test_name_servers_come_from_the_options_or_the_environment() -> None:
    listed = ClientOptions(namesrv=["a:1", "b:2"]).endpoint({})
    assert listed.namesrv == (Address("a", 1), Address("b", 2))
    found = ClientOptions().endpoint({"NAMESRV_ADDR": "c:3"})
    assert (found.namesrv, found.source) == ((Address("c", 3),), "NAMESRV_ADDR")
    with pytest.raises(ConfigError, match="no name server is given"):
        ClientOptions().endpoint({})


def test_options_win_over_the_url() -> None:
    url = "rocketmq://u:p@a:1/ns"
    endpoint = ClientOptions(namesrv=url).endpoint({})
    assert (endpoint.access_key, endpoint.namespace) == ("u", "ns")
    options = ClientOptions(namesrv=url, acl=("ak", "sk", "tok"), namespace="other")
    endpoint = options.endpoint({})
    assert (endpoint.access_key, endpoint.secret_key, endpoint.namespace) == ("ak", "sk", "other")
    credentials = options.credentials(endpoint)
    assert credentials is not None
    assert credentials.security_token == "tok"
    assert ClientOptions(namesrv=url, namespace_v2="n2").endpoint({}).namespace == ""
    assert (
        ClientOptions(namesrv="a:1").credentials(ClientOptions(namesrv="a:1").endpoint({})) is None
    )


@pytest.mark.parametrize(
    "settings", [{"request_timeout": 0}, {"offset_interval": -1}, {"route_interval": float("nan")}]
)
def test_durations_must_be_positive(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        ClientOptions(**settings)  # type: ignore[arg-type]


def test_two_kinds_of_namespace_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="exclude each other"):
        ClientOptions(namespace="a", namespace_v2="b")


def test_durations_are_seconds_or_timedeltas() -> None:
    assert (seconds(2), seconds(timedelta(minutes=1))) == (2.0, 60.0)


@pytest.mark.parametrize(
    "text", ["http://jmenv.tbsite.net:8080/rocketmq/nsaddr", "https://lookup/list"]
)
def test_fetching_the_list_by_http_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="cannot be fetched by HTTP"):
        ClientOptions(namesrv=text).endpoint({})
    with pytest.raises(ConfigError, match="cannot be fetched by HTTP"):
        ClientOptions().endpoint({"NAMESRV_ADDR": text})
    assert ClientOptions(namesrv="a:1").endpoint({"NAMESRV_ADDR": text}).namesrv[0].host == "a"


def test_an_endpoint_in_the_form_of_a_url_is_an_address() -> None:
    found = ClientOptions(namesrv="http://MQ_INST_1_2.host:80").endpoint({})
    assert found.namesrv == (Address("MQ_INST_1_2.host", 80),)
    assert found.namespace == "MQ_INST_1_2"


def test_tls_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="TLS are not supported yet"):
        ClientOptions(namesrv="rocketmq://a:1?tls=1").endpoint({})


def test_the_zone_comes_from_the_options_or_the_environment() -> None:
    environ = {"ROCKETMQ_ZONE": "z1", "ROCKETMQ_ZONE_MODE": "false"}
    assert ClientOptions().zone_entries({}) == {}
    assert ClientOptions().zone_entries(environ) == {"__ZONE_NAME": "z1", "__ZONE_MODE": "false"}
    assert ClientOptions(zone="z2").zone_entries(environ) == {
        "__ZONE_NAME": "z2",
        "__ZONE_MODE": "true",
    }


def test_there_are_two_access_channels() -> None:
    with pytest.raises(ConfigError, match="LOCAL or CLOUD"):
        ClientOptions(access_channel="other")


def test_no_secret_shows() -> None:
    options = ClientOptions(namesrv="rocketmq://u:secret@a:1/ns", acl=("ak", "hidden"), trace=True)
    assert repr(options) == (
        "ClientOptions(namesrv='rocketmq://u:***@a:1/ns', acl=('ak', '***'), trace=True)"
    )
    assert repr(ClientOptions()) == "ClientOptions()"
