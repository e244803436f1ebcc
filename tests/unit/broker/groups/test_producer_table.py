"""Groups of producers, and the way to a client by its id."""

from __future__ import annotations

import pytest

from skylark.broker.groups import producer_table as producers
from skylark.broker.groups.producer_table import ProducerTable
from skylark.wire.fastjson import encode_body
from tests.unit.broker.connections import FakeConnection, channel


def test_members_take_turns() -> None:
    table = ProducerTable()
    members = [channel(f"c{number}", number) for number in range(3)]
    for member in members:
        assert table.heartbeat("p", member, 0)
        assert table.heartbeat("p", member, 1), "a repetition is no second member"
    picked = [table.next_channel("p") for _ in range(6)]
    assert picked[:3] == picked[3:]
    assert {id(connection) for connection in picked} == {id(m.peer) for m in members}
    assert table.next_channel("unknown") is None


def test_an_unknown_producer_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    table = ProducerTable()
    member = channel("c", 1)
    with caplog.at_level("DEBUG"):
        for group in ("CLIENT_INNER_PRODUCER", "SPARK_TXN", "shop"):
            table.heartbeat(group, member, 0)
        table.channel_closed(member.peer)
    news = [record.getMessage() for record in caplog.records if record.levelname == "INFO"]
    assert [text.split()[2] for text in news] == ["shop:", "shop:"]
    assert len(caplog.records) == 6


@pytest.mark.parametrize("group", ["SPARK_TXN", "MQ_INST_a_b%SPARK_TXN"])
def test_resolvers_are_listed_once_they_were_asked(group: str) -> None:
    table = ProducerTable()
    resolver, application = channel("resolver", 1), channel("application", 2)
    table.heartbeat(group, resolver, 0)
    table.heartbeat("shop", application, 0)
    assert table.connection_list(group) is None
    assert list(table.table_info().data) == ["shop"]
    assert table.next_channel(group) is resolver.peer, "it can be asked all the time"
    assert table.connection_list(group) is not None
    assert list(table.table_info().data) == [group, "shop"]


def test_closing_members_are_passed_over() -> None:
    table = ProducerTable()
    members = [channel(f"c{number}", number) for number in range(3)]
    for member in members:
        table.heartbeat("p", member, 0)
    members[1].peer.close()
    picked = [table.next_channel("p") for _ in range(6)]
    assert members[1].peer not in picked
    assert set(picked) == {members[0].peer, members[2].peer}
    members[0].peer.close()
    assert table.next_channel("p") is members[2].peer
    members[2].peer.close()
    assert table.next_channel("p") is None


def test_a_client_is_found_by_its_newest_channel() -> None:
    table = ProducerTable()
    old, new = channel("c", 1), channel("c", 2)
    assert table.find("c") is None
    table.heartbeat("p", old, 0)
    table.heartbeat("p", new, 1)
    table.heartbeat("p", old, 2)
    assert table.find("c") is new.peer
    new.peer.close()
    assert table.find("c") is old.peer, "one that is closing is no good"
    table.channel_closed(new.peer)
    assert table.find("c") is old.peer
    table.channel_closed(old.peer)
    assert table.find("c") is None


def test_a_client_is_found_while_it_is_in_any_group() -> None:
    table = ProducerTable()
    c = channel("c")
    table.heartbeat("p", c, 0)
    table.heartbeat("CLIENT_INNER_PRODUCER", c, 0)
    table.unregister("p", c.peer)
    assert table.find("c") is c.peer
    assert table.connection_list("p") is None
    table.unregister("CLIENT_INNER_PRODUCER", c.peer)
    table.unregister("CLIENT_INNER_PRODUCER", c.peer)
    assert table.find("c") is None
    assert len(table) == 0


def test_a_connection_may_change_its_client_id() -> None:
    table = ProducerTable()
    c = channel("c")
    table.heartbeat("p", c, 0)
    table.heartbeat("q", c, 0)
    renamed = channel("z", peer=c.peer)
    table.heartbeat("p", renamed, 1)
    assert table.find("c") is None
    assert table.find("z") is c.peer
    table.channel_closed(c.peer)
    assert table.find("z") is None
    assert len(table) == 0


def test_silent_channels_are_closed() -> None:
    table = ProducerTable()
    a, b = channel("a", 1), channel("b", 2)
    for group in ("p", "q"):
        table.heartbeat(group, a, 0)
    table.heartbeat("p", b, 100)
    assert table.expire(120_000) == []
    assert table.expire(120_001) == [a.peer]
    assert table.find("a") is None
    assert table.next_channel("p") is b.peer
    assert len(table) == 1


def test_virtual_time_does_not_expire_open_connections() -> None:
    table = ProducerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat("p", a, 0)
    table.heartbeat("p", b, 0)
    b.peer.close()
    table.refresh(7_200_000)
    assert table.expire(7_200_000) == [b.peer]


def test_names_of_any_length_are_not_kept() -> None:
    table = ProducerTable()
    a = channel("a")
    assert not table.heartbeat("p" * 256, a, 0)
    assert table.connection_list("p" * 256) is None
    assert table.heartbeat("p" * 255, a, 0)


def test_groups_of_one_connection_are_limited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(producers, "GROUPS_PER_PEER_MAX", 2)
    table = ProducerTable()
    a = channel("a")
    assert [table.heartbeat(group, a, 0) for group in ("p", "q", "r")] == [True, True, False]
    assert not table.heartbeat("r", a, 1)
    assert table.heartbeat("p", a, 1), "what is registered stays so"
    assert caplog.messages == [
        "a at 10.0.0.1:1: skipped producer groups, too many or too long names"
    ]
    assert table.connection_list("r") is None
    assert table.heartbeat("r", channel("b", 2), 0)


def test_the_connection_list_is_byte_equal_to_javas() -> None:
    """The body recorded in ``frames/admin-producerConnection``."""
    connection = FakeConnection()
    connection.remote_address = ("127.0.0.1", 42088)
    table = ProducerTable()
    table.heartbeat("golden_hold_pg", channel("127.0.0.1@golden_hold_pg", 0, connection), 0)
    assert encode_body(table.connection_list("golden_hold_pg")) == (
        b'{"connectionSet":[{"clientAddr":"127.0.0.1:42088",'
        b'"clientId":"127.0.0.1@golden_hold_pg","language":"JAVA","version":513}]}'
    )


def test_the_table_of_all_producers() -> None:
    table = ProducerTable()
    a, b = channel("a", 1), channel("b", 2)
    table.heartbeat("p", a, 5)
    table.heartbeat("p", b, 6)
    table.heartbeat("p", a, 7)
    table.heartbeat("q", b, 8)
    member = (
        b'{"clientId":"%s","language":"JAVA","lastUpdateTimestamp":%d,'
        b'"remoteIP":"/10.0.0.1:%d","version":513}'
    )
    assert encode_body(table.table_info()) == (
        b'{"data":{"p":[' + member % (b"a", 7, 1) + b"," + member % (b"b", 6, 2) + b"],"
        b'"q":[' + member % (b"b", 8, 2) + b"]}}"
    )
