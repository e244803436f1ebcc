"""Our client on an Apache broker that asks who one is, and what one may do (ACL 2.0 of 5.x)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from skylark import (
    ClientOptions,
    ConsumeFromWhere,
    Message,
    MessageExt,
    NoPermissionError,
    SkylarkError,
)
from skylark.aio import Admin, LitePullConsumer, Producer, PushConsumer
from skylark.client.core.broker_calls import make_request
from skylark.wire.codes import RequestCode
from tests.interop.broker_scenarios.scene import TIMEOUT_S, Site
from tests.interop.client_scenarios.stage import APACHE_SETTINGS, running_site

pytestmark = pytest.mark.interop

ADMIN = ("root", "root-secret")
GUEST = ("guest", "guest-secret")
TOPIC = "AclTopic"
FIRST = ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET
_PROVIDERS = "org.apache.rocketmq.auth"
SETTINGS = {
    **APACHE_SETTINGS,
    "authenticationEnabled": "true",
    "authenticationProvider": f"{_PROVIDERS}.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": (
        f"{_PROVIDERS}.authentication.provider.LocalAuthenticationMetadataProvider"
    ),
    "initAuthenticationUser": json.dumps(dict(zip(("username", "password"), ADMIN, strict=True))),
    "innerClientAuthenticationCredentials": json.dumps(
        dict(zip(("accessKey", "secretKey"), ADMIN, strict=True))
    ),
    "authorizationEnabled": "true",
    "authorizationProvider": f"{_PROVIDERS}.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": (
        f"{_PROVIDERS}.authorization.provider.LocalAuthorizationMetadataProvider"
    ),
}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A site with one topic and two users: one who may do everything, and one who may nothing."""
    with running_site(tmp_path_factory.mktemp("acl"), settings=SETTINGS) as site:
        asyncio.run(_prepare(site))
        yield site


async def _prepare(site: Site) -> None:
    async with asyncio.timeout(TIMEOUT_S), Admin(options(site, ADMIN), timeout=15) as admin:
        while not (await admin.stats.clusters()).brokers:  # noqa: ASYNC110 - servers do not tell
            await asyncio.sleep(0.05)
        await admin.topics.create(TOPIC, queue_count=2)
        request = make_request(RequestCode.AUTH_CREATE_USER)
        request.ext = {"username": GUEST[0]}
        request.body = json.dumps(
            {"username": GUEST[0], "password": GUEST[1], "userType": "Normal"}
        ).encode()
        for address in (await admin.session.masters()).values():
            await admin.session.call(address, request)


def options(site: Site, acl: tuple[str, str] | None) -> ClientOptions:
    return ClientOptions(namesrv=site.namesrv.address, acl=acl)


async def test_with_the_right_key_everything_works(guarded: Site) -> None:
    bodies = {b"%d" % number for number in range(20)}
    seen: set[bytes] = set()
    done = asyncio.Event()
    consumer = PushConsumer("acl_group", options(guarded, ADMIN), consume_from_where=FIRST)

    @consumer.subscribe(TOPIC)
    async def handle(message: MessageExt) -> None:
        seen.add(message.body)
        if seen == bodies:
            done.set()

    async with Producer("acl_producer", options(guarded, ADMIN)) as producer:
        await asyncio.gather(*(producer.send(Message(TOPIC, body)) for body in bodies))
    async with consumer, asyncio.timeout(TIMEOUT_S):
        await done.wait()


@pytest.mark.parametrize(
    ("acl", "said"),
    [
        ((ADMIN[0], "wrong"), "check signature failed"),
        (("nobody", "x"), "not found"),
        (None, ""),
        (GUEST, "no permission"),
    ],
    ids=["wrong secret", "unknown user", "no user", "no rights"],
)
async def test_who_may_not_is_told_so(
    guarded: Site, acl: tuple[str, str] | None, said: str
) -> None:
    given = options(guarded, acl)
    async with Producer("acl_producer", given, retries=0) as producer:
        with pytest.raises(SkylarkError) as caught:
            await producer.send(Message(TOPIC, b"x"))
        refused = caught.value.__cause__ or caught.value
        assert isinstance(refused, NoPermissionError), refused
        assert said in refused.remark
    async with Admin(given, timeout=15) as admin:
        with pytest.raises(SkylarkError):
            await admin.topics.create(f"{TOPIC}2")
    async with LitePullConsumer("acl_lite", given).subscribe(TOPIC) as consumer:
        assert await consumer.poll(2) == []
