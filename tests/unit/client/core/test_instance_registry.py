"""Who shares a client instance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.client.core import instance_registry as instances
from skylark.client.core.client_options import ClientOptions
from skylark.client.core.client_runtime import inline_runtime
from skylark.client.core.instance_registry import acquire_instance, instance_count
from skylark.client.core.service_state import ServiceState, require_new, require_running
from skylark.core.errors import ClientStateError, ConfigError
from tests.unit.client.worlds import world


async def test_clients_with_one_id_share_until_the_last_one_leaves(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        await w.add_name_server()
        runtime = inline_runtime(w.network, w.clock)
        first = w.table.acquire(w.options(), "id", runtime)
        second = w.table.acquire(w.options(route_interval=7.0), "id", runtime)
        assert second is first
        other = w.table.acquire(w.options(), "other", runtime)
        assert other is not first
        await first.start()
        await first.release()
        assert first.state.value == "RUNNING"
        await w.finish(second.release())
        assert first.state.value == "SHUTDOWN_ALREADY"
        fresh = w.table.acquire(w.options(), "id", runtime)
        assert fresh is not first
        await first.release()  # once too often: it takes nothing from others
        assert len(w.table) == 2
        await w.finish(fresh.release())
        await w.finish(other.release())


@pytest.mark.parametrize(
    ("given", "difference"),
    [
        ({"namesrv": "b:1"}, "name servers"),
        ({"acl": ("ak", "other")}, "credentials"),
        ({"namespace": "n"}, "namespace"),
        ({"namespace_v2": "n"}, "namespace v2"),
        ({"vip_channel": True}, "vip channel"),
        ({"zone": "z"}, "zone"),
    ],
)
async def test_one_id_means_one_cluster(given: dict[str, Any], difference: str) -> None:
    table = instances.InstanceTable()
    base: dict[str, Any] = {"namesrv": "a:1;c:1", "acl": ("ak", "sk")}
    runtime = inline_runtime()
    instance = table.acquire(ClientOptions(**base), "id", runtime)
    assert table.acquire(ClientOptions(**base | {"namesrv": "c:1;a:1"}), "id") is instance
    with pytest.raises(ClientStateError, match=f"other {difference}$|other {difference}:"):
        table.acquire(ClientOptions(**base | given), "id", runtime)


async def test_the_table_of_the_process() -> None:
    options = ClientOptions(namesrv="a:1")
    instance = acquire_instance(options, "id", inline_runtime(), stream=True)
    assert instance_count() == 1
    await instance.release()
    assert instance_count() == 0


async def test_without_name_servers_there_is_no_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SKYLARK_NAMESRV", "NAMESRV_ADDR", "ROCKETMQ_NAMESRV_ADDR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="no name server is given"):
        acquire_instance(ClientOptions(), "id")
    assert instance_count() == 0


@pytest.mark.parametrize("state", ServiceState)
def test_states_say_what_is_wrong(state: ServiceState) -> None:
    if state is not ServiceState.RUNNING:
        with pytest.raises(ClientStateError, match="the thing "):
            require_running(state, "the thing")
    if state is not ServiceState.CREATE_JUST:
        with pytest.raises(ClientStateError, match="the thing "):
            require_new(state, "the thing")
    require_running(ServiceState.RUNNING, "it")
    require_new(ServiceState.CREATE_JUST, "it")
