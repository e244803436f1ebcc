"""Unique ids: their form, and that a message has one."""

from __future__ import annotations

import os

import pytest

from skylark.client.core.client_options import ClientOptions
from skylark.client.producer.unique_ids import ensure_unique_id, unique_id_generator
from skylark.core.clock import SystemClock
from skylark.core.hashing import UniqueIdGenerator, decode_unique_id


@pytest.mark.spec("client.8.8")
def test_the_printed_form_is_drawn_once_and_kept() -> None:
    generator = UniqueIdGenerator(
        ip=bytes([10, 0, 0, 1]),
        pid=12345,
        salt=0x12345678,
        now_ms=lambda: 1_000_000_000_000 + 123_456_789,
        month_start_ms=lambda _: 1_000_000_000_000,
    )
    for _ in range(7):
        generator.next_id()
    properties = {"a": "b"}
    assert ensure_unique_id(properties, generator) == "0A000001303912345678075BCD150007"
    assert properties == {"a": "b", "UNIQ_KEY": "0A000001303912345678075BCD150007"}
    # sent again: it has one already
    assert ensure_unique_id(properties, generator) == "0A000001303912345678075BCD150007"


def test_every_client_draws_others() -> None:
    options = ClientOptions(client_ip="10.0.0.1")
    ids = [unique_id_generator(options, SystemClock()).next_id() for _ in range(20)]
    assert len(set(ids)) == 20
    parts = decode_unique_id(ids[0])
    assert (parts.ip, parts.pid) == (bytes([10, 0, 0, 1]), os.getpid() & 0xFFFF)


@pytest.mark.parametrize(("address", "size"), [("[2001:db8::1]", 56), ("a-name", 32)])
def test_any_address_will_do(address: str, size: int) -> None:
    generator = unique_id_generator(ClientOptions(client_ip=address), SystemClock())
    assert len(generator.next_id()) == size
