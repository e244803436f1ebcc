"""Selection of the queue for a message: round robin, or by a key.

**Round robin.** A counter per producer and topic, from a random start, walks the publish list. A
retry avoids the broker of the last attempt, if there is another one. With latency fault tolerance
(:mod:`skylark.client.producer.latency_fault_tolerance`) it skips brokers that are not available,
or, if there are none, brokers that are not reachable; if no queue is left, the counter alone
decides, so that a message is always sent.

**By key.** Equal keys go to the same queue, in every language: the index is the absolute value of
Java's remainder of Java's hash. If the number of queues changes, keys get other queues.

Any function ``(queues, message, arg) -> queue`` can be a selector; its queues are those that accept
messages, in publish order, with the topic as the application knows it. Counterpart of Java's
``TopicPublishInfo.selectOneMessageQueue``, ``MQFaultStrategy``, ``SelectMessageQueueByHash`` and
``SelectMessageQueueByRandom``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from skylark.client.core.client_message import Message
from skylark.core.errors import ClientError
from skylark.core.hashing import java_hash
from skylark.wire.bodies.common_body import MessageQueue

Queues: TypeAlias = Sequence[MessageQueue]
#: Chooses the queue of a message; the third argument is what the caller of ``send`` gave.
Selector: TypeAlias = Callable[[Queues, Message, Any], MessageQueue | None]
#: What messages are sharded by.
ShardKey: TypeAlias = str | int

_INT31 = 0x7FFF_FFFF
_INT32_SIGN = 0x8000_0000
_INT64_SIGN = 1 << 63
_MASK32 = 0xFFFF_FFFF
_MASK64 = (1 << 64) - 1


class BrokerAvailability(Protocol):
    """The state of brokers, by name."""

    def is_available(self, broker_name: str) -> bool:
        """Whether it is neither slow nor isolated."""

    def is_reachable(self, broker_name: str) -> bool:
        """Whether it answers at all."""


class RoundRobin:
    """The counter of one producer and topic."""

    __slots__ = ("_count", "_rng")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = rng.getrandbits(31)

    def draw(self, size: int) -> int:
        """The next index into a list of ``size``."""
        self._count = count = (self._count + 1) & _INT31
        return count % size

    def restart(self) -> None:
        """Continue at a random index."""
        self._count = self._rng.getrandbits(31)


def choose_in_turn(
    queues: Queues,
    turn: RoundRobin,
    last_broker: str | None = None,
    faults: BrokerAvailability | None = None,
) -> MessageQueue:
    """The queue of the next attempt; ``last_broker`` is the broker of the last attempt.

    ``queues`` is not empty. ``faults`` is given with latency fault tolerance.
    """
    if faults is None:
        if last_broker is not None:
            for _ in queues:
                queue = queues[turn.draw(len(queues))]
                if queue.broker_name != last_broker:
                    return queue
        return queues[turn.draw(len(queues))]
    if last_broker is not None:
        turn.restart()
    for is_usable in (faults.is_available, faults.is_reachable):
        for _ in queues:
            queue = queues[turn.draw(len(queues))]
            if queue.broker_name != last_broker and is_usable(queue.broker_name):
                return queue
    return queues[turn.draw(len(queues))]


def shard_index(key: ShardKey, count: int) -> int:
    """The index of the queue of a key, among ``count`` queues."""
    return abs(_hash_of(key)) % count  # = abs of Java's remainder, which has the dividend's sign


def _hash_of(key: ShardKey) -> int:
    if isinstance(key, str):
        return java_hash(key)
    if not isinstance(key, int):
        raise ClientError(f"a sharding key is text or an integer, not {type(key).__name__}")
    if -_INT32_SIGN <= key < _INT32_SIGN:
        return int(key)
    if not -_INT64_SIGN <= key < _INT64_SIGN:
        raise ClientError(f"sharding key {key} does not fit into 64 bits")
    bits = key & _MASK64
    folded = (bits ^ bits >> 32) & _MASK32
    return folded - (1 << 32) if folded & _INT32_SIGN else folded


def select_by_hash(queues: Queues, message: Message, arg: Any) -> MessageQueue:
    """A selector: equal arguments, text or integers, have the same queue."""
    del message
    return queues[shard_index(arg, len(queues))]


def select_randomly(queues: Queues, message: Message, arg: Any) -> MessageQueue:
    """A selector: any queue."""
    del message, arg
    return random.choice(queues)


def apply_selector(
    selector: Selector, queues: Queues, message: Message, arg: object
) -> MessageQueue:
    """The queue that a selector returns; raises ClientError if it fails or returns none."""
    try:
        queue = selector(queues, message, arg)
    except Exception as error:
        raise ClientError(f"the selector failed: {error!r}") from error
    if queue is None:
        raise ClientError("the selector returned None", hint="a selector must return a queue")
    if not isinstance(queue, MessageQueue):
        raise ClientError(f"a selector returned {type(queue).__name__}, not a MessageQueue")
    return queue
