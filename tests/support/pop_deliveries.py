"""Judges each delivery of a popped message, in a storm of kills: may the message come again?

A message stands in its queue and, after it has expired or was given back, as copies in the retry
topic. Each place has a state of its own::

    popped --(ack answered in time)--> acked
    popped --(a copy was popped)-----> copied

* **Merging off.** A place is popped again only after a kill, and only while it is ``popped``, never
  after its ack or its copy. A new copy needs a place that is ``popped``, which is ``copied`` then.
* **Merging on.** What was in memory only is popped again: a place that is acked or copied, if the
  broker was killed within ``popCkStayBufferTime`` after that ack, or after the pop of what was
  copied. Such a place may be copied once more. So each of these kills allows as many further copies
  as the message had places.

  What was popped once more after its ack need not come again, nor need its copies: one ack in time
  is all that a message needs.

Where an ack was sent and not answered in time, the message may or may not come again.

A message that comes again although all its places were acked is a *repeat*.
"""

from __future__ import annotations

from typing import Final

import msgspec

STAY_MS: Final = 10_000

#: Kind of topic, queue and offset.
Place = tuple[str, int, int]


class PlaceState(msgspec.Struct):
    """One place of a message."""

    popped_ms: int
    #: Earlier deliveries, by the message itself: a copy has one more than what it is a copy of.
    attempts: int
    ack_sent_ms: int = 0
    acked_ms: int | None = None
    is_copied: bool = False
    #: An ack is on its way, or came late.
    is_unclear: bool = False

    @property
    def is_open(self) -> bool:
        return self.acked_ms is None and not self.is_copied


class MessagePlaces(msgspec.Struct):
    """All places of one message."""

    places: dict[Place, PlaceState] = {}
    pop_count: int = 0
    #: When the message was popped or acked.
    events_ms: list[int] = []
    #: Copies that needed a kill.
    extra_copy_count: int = 0
    was_acked: bool = False

    @property
    def is_settled(self) -> bool:
        """Whether every place is acked or copied."""
        return bool(self.places) and not any(place.is_open for place in self.places.values())

    @property
    def must_come(self) -> bool:
        """Whether the message must come again, by the rule of brokers that do not merge.

        Unless an ack was not answered in time.
        """
        return not self.places or any(
            place.is_open and not place.is_unclear for place in self.places.values()
        )


class Deliveries:
    """All messages of a storm."""

    def __init__(self, *, merging: bool) -> None:
        self.messages: dict[bytes, MessagePlaces] = {}
        self.kills_ms: list[int] = []
        #: Messages that came again although each of their places was acked.
        self.repeat_count = 0
        #: The longest time between such an ack and the kill after it.
        self.repeat_age_ms = 0
        self._merging = merging

    @property
    def redelivered_count(self) -> int:
        """Deliveries after the first one that are no repeats."""
        return sum(each.pop_count - 1 for each in self.messages.values()) - self.repeat_count

    def must_come(self, body: bytes) -> bool:
        """Whether a message that was sent has to be delivered, for the first time or again."""
        message = self.messages.get(body)
        if message is None:
            return True
        return message.must_come and not (self._merging and message.was_acked)

    def ack_sent(self, body: bytes, place: Place, now_ms: int) -> None:
        state = self.messages[body].places[place]
        state.is_unclear, state.ack_sent_ms = True, now_ms

    def acked(self, body: bytes, place: Place, now_ms: int) -> None:
        """The ack of a message was answered in time."""
        message = self.messages[body]
        message.was_acked = True
        message.places[place].acked_ms = now_ms
        message.events_ms.append(now_ms)

    def popped(self, body: bytes, place: Place, attempts: int, popped_ms: int) -> None:
        """A message was delivered; raises AssertionError if it must not come again.

        ``popped_ms`` is the time of the broker: its answer may be read after it was killed.
        """
        message = self.messages.setdefault(body, MessagePlaces())
        was_settled = message.is_settled
        state = message.places.get(place)
        if state is not None:
            age_ms = self._check_place(state)
        elif message.places:
            age_ms = self._check_copy(message, attempts)
        else:
            age_ms = 0
        message.pop_count += 1
        message.events_ms.append(popped_ms)
        message.places[place] = PlaceState(popped_ms, attempts)
        if was_settled:
            self.repeat_count += 1
            self.repeat_age_ms = max(self.repeat_age_ms, age_ms)

    def _check_place(self, state: PlaceState) -> int:
        """A place is popped once more; the time between its ack, or pop, and the kill after it."""
        if state.is_open:
            assert any(kill_ms >= state.popped_ms for kill_ms in self.kills_ms), "popped twice"
            return 0
        assert self._merging, "acked or copied, and popped again"
        if state.acked_ms is None:
            since_ms = answered_ms = state.popped_ms
        else:
            since_ms, answered_ms = state.ack_sent_ms, state.acked_ms
        kill_ms = min((kill for kill in self.kills_ms if kill >= since_ms), default=None)
        assert kill_ms is not None, "acked or copied, and popped again without a kill"
        age_ms = max(0, kill_ms - answered_ms)
        assert age_ms <= STAY_MS, f"popped again, and the next kill was {age_ms} ms later"
        return age_ms

    def _check_copy(self, message: MessagePlaces, attempts: int) -> int:
        """There is another copy; the time between the last event and the kill that allows it."""
        # The last one that it may be a copy of; a pop whose answer was lost leaves out attempts.
        open_places = [
            place
            for place in message.places.values()
            if place.is_open and place.attempts < attempts
        ]
        if open_places:
            max(open_places, key=lambda place: place.attempts).is_copied = True
            return 0
        assert self._merging, "a copy of a message that was acked"
        ages_ms = [self._age_at(message, kill_ms) for kill_ms in self.kills_ms]
        recent_ms = [age_ms for age_ms in ages_ms if age_ms is not None and age_ms <= STAY_MS]
        message.extra_copy_count += 1
        allowed = len(recent_ms) * len(message.places)
        assert message.extra_copy_count <= allowed, (
            f"copy {message.extra_copy_count} without a kill that explains it"
        )
        return min(recent_ms)

    @staticmethod
    def _age_at(message: MessagePlaces, kill_ms: int) -> int | None:
        before = [event_ms for event_ms in message.events_ms if event_ms <= kill_ms]
        return kill_ms - max(before) if before else None
