"""Offset ids that name brokers as they are not registered."""

from __future__ import annotations

import ipaddress
from pathlib import Path

import pytest

from skylark.admin.errors import NotFoundError
from skylark.client.core.client_message import Message
from skylark.core.hashing import decode_offset_id, encode_offset_id
from skylark.wire.message import pack_host
from tests.unit.admin.sites import running_site


async def test_a_broker_that_moved_is_found_by_asking_all(tmp_path: Path) -> None:
    async with running_site(tmp_path, broker_count=2) as (site, admin):
        await admin.topics.create("T", queue_count=1)
        (sent,) = await site.send(Message("T", b"here"))
        assert sent.offset_msg_id is not None
        place = decode_offset_id(sent.offset_msg_id)
        assert place.port == site.brokers[sent.queue.broker_name].address.port
        # The same place in the log of a broker that nobody knows: not that message.
        for host in (pack_host("192.0.2.1", 10911), pack_host("2001:db8::1", 10911)):
            stranger = encode_offset_id(host, place.log_offset)
            assert len(stranger) in (32, 56)
            with pytest.raises(NotFoundError):
                await admin.messages.get(stranger)
        # Lower case is the same id, and another topic is not.
        assert (await admin.messages.get(sent.offset_msg_id.lower())).body == b"here"
        await admin.topics.create("U")
        with pytest.raises(NotFoundError, match="in topic U"):
            await admin.messages.get(sent.offset_msg_id, "U")


async def test_a_broker_with_an_ipv6_address(tmp_path: Path) -> None:
    async with running_site(tmp_path, brokerIP1="::1", bindAddress="::1") as (site, admin):
        await admin.topics.create("T", queue_count=1)
        (sent,) = await site.send(Message("T", b"six"))
        assert sent.offset_msg_id is not None
        assert len(sent.offset_msg_id) == 56
        assert decode_offset_id(sent.offset_msg_id).ip == ipaddress.ip_address("::1").packed
        assert (await admin.messages.get(sent.offset_msg_id)).body == b"six"


async def test_a_store_host_that_is_not_registered(tmp_path: Path) -> None:
    """As in a container: the broker calls itself by another address than it registers."""
    async with running_site(tmp_path) as (site, admin):
        await admin.topics.create("T", queue_count=1)
        broker = site.brokers["broker-a"]
        (sent,) = await site.send(Message("T", b"x"))
        assert sent.offset_msg_id is not None
        info = await admin.session.cluster_info()
        info.broker_addr_table["broker-a"].broker_addrs[0] = f"localhost:{broker.address.port}"
        original = admin.session.cluster_info

        async def renamed() -> object:
            return info

        admin.session.cluster_info = renamed  # type: ignore[method-assign, assignment]
        try:
            assert (await admin.messages.get(sent.offset_msg_id)).body == b"x"
        finally:
            admin.session.cluster_info = original  # type: ignore[method-assign]
