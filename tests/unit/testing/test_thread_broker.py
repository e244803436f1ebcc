"""The broker for tests without asyncio."""

from __future__ import annotations

import threading

import pytest

from skylark import Message
from skylark.core.errors import ConfigError
from skylark.sync import Admin, LitePullConsumer, Producer
from skylark.testing import MessageFaults, sync_broker
from skylark.testing.thread_broker import THREAD_NAME


def broker_threads() -> int:
    return sum(thread.name == THREAD_NAME for thread in threading.enumerate())


def test_messages_pass_and_nothing_is_left() -> None:
    with sync_broker() as b:
        assert broker_threads() == 1
        topic, group = b.topic(queue_count=1), b.group()
        with Producer("p", b.options) as producer:
            producer.send(Message(topic, b"hello"))
        with LitePullConsumer(group, b.options) as consumer:
            (queue,) = consumer.fetch_queues(topic)
            assert consumer.max_offset(queue) == 1
        with Admin(b.options) as admin:
            assert topic in admin.topics.names()
            b.delete_topic(topic)
            b.delete_topic(topic)
            assert topic not in admin.topics.names()
            b.delete_group(group)
            b.delete_group(group)
    assert broker_threads() == 0


def test_settings_reach_the_broker() -> None:
    with (
        sync_broker({"autoCreateTopicEnable": False}, brokerName="mine") as b,
        Admin(b.options) as admin,
    ):
        (broker,) = admin.stats.clusters().brokers
        assert broker.broker == "mine"


def test_faults_may_come_and_go() -> None:
    with sync_broker() as b, Producer("p", b.options) as producer:
        topic = b.topic(queue_count=1)
        b.faults = plan = MessageFaults(duplicate=1.0)
        producer.send(Message(topic, b"twice"))
        b.faults = None
        producer.send(Message(topic, b"once"))
        assert plan.hit_count == 1


def test_what_keeps_it_from_starting_is_raised() -> None:
    with pytest.raises(ConfigError, match="there is no such setting"), sync_broker(nonsense=1):
        pass
    assert broker_threads() == 0
