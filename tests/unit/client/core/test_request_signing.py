"""What is added to requests, and in which order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from skylark.auth.signature import Credentials, sign, signed_content, verify
from skylark.client.core.request_signing import RequestChain
from skylark.wire.codes import CURRENT_VERSION
from skylark.wire.command import Command
from tests.unit.client.scripted import ScriptedServer
from tests.unit.client.worlds import FakeConsumer, world

CREDENTIALS = Credentials(access_key="ak", secret_key="sk")


@pytest.mark.spec("client.8.6")
def test_the_signature_is_the_published_one() -> None:
    request = Command(code=1, ext={"queueId": "0", "topic": "T"}, body=b"body")
    RequestChain(credentials=CREDENTIALS).before("a:1", request)
    assert request.ext == {
        "queueId": "0",
        "topic": "T",
        "AccessKey": "ak",
        "Signature": "Hgg5qvd+x4pcTBBxFgXCwTBfD5I=",
    }
    assert signed_content(request.ext, request.body) == b"ak0Tbody"


class Hook:
    def __init__(self) -> None:
        self.seen: list[object] = []

    def before_request(self, address: str, request: Command) -> None:
        self.seen.append((address, dict(request.ext or {})))
        request.ext = {**(request.ext or {}), "mine": "m"}

    def after_response(self, address: str, request: Command, response: Command) -> None:
        self.seen.append((address, response.code))


def test_everything_but_the_zone_is_signed() -> None:
    hook = Hook()
    chain = RequestChain(
        namespace_v2="n2",
        stream=True,
        hooks=[hook, object()],
        credentials=CREDENTIALS,
        zone={"__ZONE_NAME": "z", "__ZONE_MODE": "true"},
    )
    request = Command(code=1, ext={"topic": "T"})
    chain.before_name_server("a:1", request)
    assert hook.seen == [("a:1", {"topic": "T", "nsd": "true", "ns": "n2", "ReqT": "0"})]
    assert request.ext is not None
    signature = request.ext["Signature"]
    signed = {"topic": "T", "nsd": "true", "ns": "n2", "ReqT": "0", "mine": "m", "AccessKey": "ak"}
    assert signature == sign(signed, None, "sk")
    zone = {"__ZONE_NAME": "z", "__ZONE_MODE": "true"}
    assert request.ext == {**signed, "Signature": signature, **zone}
    chain.before_name_server("a:1", request)  # sent again: the same
    assert request.ext == {**signed, "Signature": signature, **zone}
    chain.after("a:1", request, Command(code=7))
    assert hook.seen[-1] == ("a:1", 7)


def test_brokers_can_check_what_they_get() -> None:
    chain = RequestChain(credentials=CREDENTIALS, zone={"__ZONE_NAME": "z"})
    request = Command(code=1, ext={"topic": "T"}, body=b"x")
    chain.before("a:1", request)
    assert verify(request.ext, request.body, "sk", version=CURRENT_VERSION)
    assert "__ZONE_NAME" not in (request.ext or {})


def test_a_chain_without_anything_is_empty() -> None:
    assert RequestChain().is_empty
    assert RequestChain(zone={"__ZONE_NAME": "z"}).is_empty
    assert not RequestChain(credentials=CREDENTIALS).is_empty
    assert not RequestChain(hooks=[Hook()]).is_empty
    request = Command(code=1)
    RequestChain().before("a:1", request)
    assert request.ext is None


def test_an_after_hook_that_fails_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Failing:
        def after_response(self, *_: object) -> None:
            raise ZeroDivisionError

    RequestChain(hooks=[Failing()]).after("a:1", Command(), Command())
    assert "failed" in caplog.text


async def test_every_request_is_signed_and_marked(tmp_path: Path) -> None:
    async with world(tmp_path) as w:
        server = ScriptedServer(w.network, w.clock)
        server.serve_route("T", a=await server.start())
        options: dict[str, Any] = {"acl": ("ak", "sk", "token"), "zone": "z"}
        async with w.client(namesrv=server.address, stream=True, **options) as instance:
            await instance.register_consumer(FakeConsumer("g", "T"))
            await instance.refresh_route("T")
            await instance.heartbeat_all()
            link = instance.open_link()
            await link.oneway(server.address, Command(code=15, ext={"a": "b"}))
            await link.call(server.address, Command(code=14, body=b"x"))
            await link.release()
        asked = {request.code: request for request in server.requests}
        assert set(asked) == {105, 34, 15, 14}
        for request in server.requests:
            ext = request.ext or {}
            assert (ext["ReqT"], ext["AccessKey"], ext["SecurityToken"]) == ("0", "ak", "token")
            zone = {name: ext.pop(name) for name in ("__ZONE_NAME", "__ZONE_MODE") if name in ext}
            assert zone == (
                {"__ZONE_NAME": "z", "__ZONE_MODE": "true"} if request.code == 105 else {}
            )
            assert verify(ext, request.body, "sk", version=request.version)
        await w.finish(server.stop())
