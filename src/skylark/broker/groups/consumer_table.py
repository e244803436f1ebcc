"""Consumer groups that have members: members, subscriptions, and notices of changes.

Members register by heartbeats (34). A group is in this table while it has a member; whether it
*may* exist is decided by :mod:`skylark.broker.groups.subscription_groups`. Rules, as in Java's
``ConsumerManager`` and ``ConsumerGroupInfo``:

* A member is a channel. Type, model and start position of the group are those of the last
  heartbeat, from any member.
* The group has one table of subscriptions. A topic that is new or has a newer ``subVersion`` is
  taken from a heartbeat, a topic that is not in it is dropped: if members differ, the last wins.
  (:mod:`skylark.broker.groups.subscription_lint` finds such members.)
* *Changed* means a new channel, or a topic more or less; another expression alone does not count.
  The broker notifies every channel of the group (40), also the one that caused the change, but not
  in a broadcasting group. :class:`ChangeNotices` decides when.
* A member leaves by UNREGISTER_CLIENT (35), when its connection closes, and after 120 s of silence.
  In the first two cases the others are notified. In the third the broker only closes the
  connection.

Heartbeats V2 carry a fingerprint of the client's subscriptions, and leave these out
(``withoutSub``) once the broker has answered IS_SUB_CHANGE=false. The last fingerprint is kept per
group. Unlike Java we also answer true when subscriptions are left out that we do not know, as after
a restart of the broker: otherwise the group would stay without any until the client restarts.

The classes do no I/O: events go in with the time, what is to be sent comes out. Sizes are bounded
from outside: members by the limit of connections, groups by the table of subscription groups, and
subscriptions by the size of a heartbeat.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, ValuesView
from typing import Final

import msgspec

from skylark.broker.api import Peer
from skylark.broker.groups.client_channel import CHANNEL_EXPIRED_MS, ClientChannel
from skylark.broker.groups.subscription_lint import SubscriptionLint
from skylark.wire.bodies.admin_body import ConsumerConnection, SubscriptionConflict
from skylark.wire.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    SubscriptionData,
)

logger = logging.getLogger(__name__)

#: How long a subscription that came with a pull is remembered after the last such pull.
COMPENSATION_MS: Final = 600_000
COMPENSATION_COUNT_MAX: Final = 10_000
SMALL_GROUP_SIZE: Final = 32
DELAY_MS_MAX: Final = 1_000
#: Java's fixed period where notices are not sent in real time.
BATCH_MS: Final = 15_000


class GroupNotice(msgspec.Struct, frozen=True):
    """Instruction: send NOTIFY_CONSUMER_IDS_CHANGED (40) one-way to each peer."""

    group: str
    peers: list[Peer]


class HeartbeatResult(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of one group of a heartbeat."""

    changed: bool
    #: IS_SUB_CHANGE of the answer, to be joined by *or* over the groups of a heartbeat V2.
    #: A heartbeat V1 is always answered with true, even without groups.
    sub_changed: bool
    notice: GroupNotice | None


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """The effect of a channel that has left."""

    notices: list[GroupNotice]
    #: Groups without members: their filters are dead.
    groups_gone: list[str]


class Expired(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an expiry scan."""

    peers: list[Peer]  # to be closed
    groups_gone: list[str]


class Member(msgspec.Struct, kw_only=True, eq=False):
    """One channel of one group."""

    channel: ClientChannel
    last_update_ms: int


class ConsumerGroup:
    """One group while it has members."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.consume_type: ConsumeType | None = None
        self.message_model: MessageModel | None = None
        self.consume_from_where: ConsumeFromWhere | None = None
        self.members: dict[Peer, Member] = {}
        self.subscriptions: dict[str, SubscriptionData] = {}
        self.fingerprint: int | None = None
        self.lint = SubscriptionLint(name)
        self._client_ids: list[str] | None = None  # cached until the members change

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model is MessageModel.BROADCASTING

    def client_ids(self) -> list[str]:
        """Each client once: a client that has just reconnected must not get two shares.

        Returns the same list until the members change; callers must not change it.
        """
        if self._client_ids is None:
            names = (member.channel.client_id for member in self.members.values())
            self._client_ids = list(dict.fromkeys(names))
        return self._client_ids

    def notice(self) -> GroupNotice:
        return GroupNotice(self.name, [c for c in self.members if not c.is_closing])

    def join(self, data: ConsumerData, channel: ClientChannel, now_ms: int) -> bool:
        """Add or refresh a channel; whether it is new."""
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        member = self.members.get(channel.peer)
        if member is None:
            self.members[channel.peer] = Member(channel=channel, last_update_ms=now_ms)
            self._client_ids = None
            logger.info("consumer group %s: %s joined", self.name, channel)
            return True
        if member.channel.client_id != channel.client_id:
            self._client_ids = None
            logger.warning(
                "consumer group %s: %s is now %s", self.name, member.channel, channel.client_id
            )
        member.channel = channel
        member.last_update_ms = now_ms
        return False

    def leave(self, peer: Peer) -> None:
        """Remove a channel, which is there."""
        del self.members[peer]
        self._client_ids = None

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take the subscriptions of a heartbeat; whether topics came or went."""
        changed = False
        topics = set()
        for data in subscriptions:
            topics.add(data.topic)
            old = self.subscriptions.get(data.topic)
            if old is None:
                logger.info("consumer group %s: topic %s added", self.name, data.topic)
                changed = True
            if old is None or data.sub_version > old.sub_version:
                self.subscriptions[data.topic] = data
        for topic in self.subscriptions.keys() - topics:
            logger.info("consumer group %s: topic %s removed", self.name, topic)
            del self.subscriptions[topic]
            changed = True
        return changed

    def fingerprint_changed(self, fingerprint: int, *, without_sub: bool) -> bool:
        """Record the fingerprint of a heartbeat; whether the client must send the full form."""
        old, self.fingerprint = self.fingerprint, fingerprint
        if fingerprint == 0:
            return True
        unknown = without_sub and not self.subscriptions
        return unknown or (old is not None and old != fingerprint)


class ChangeNotices:
    """Decides when the members of a group are notified of a change; does not send anything.

    A notice (40) makes each member fetch the member list and rebalance. If a thousand consumers
    join at once and each join notified all of them, half a million notices would go out, each
    answered by a list of a thousand names. So:

    * A group of up to :data:`SMALL_GROUP_SIZE` members is notified at once, every time, as in Java.
    * A larger group is notified at once after a quiet time. Changes in quick succession are
      collected; the shortest time between two rounds is one millisecond per member, at most
      :data:`DELAY_MS_MAX`. A large group thus gets about one notice per millisecond.
    * With ``realTimeNotifyConsumerChange=false`` all changes are collected for ``batch_ms``.
    """

    def __init__(self, *, batch_ms: int = 0) -> None:
        self.batch_ms = batch_ms
        self._notified_ms: dict[str, int] = {}  # the last round of each large group
        self._due_ms: dict[str, int] = {}  # groups with collected changes
        self._heap: list[tuple[int, str]] = []  # entries that differ from _due_ms are stale

    def changed(self, group: str, member_count: int, now_ms: int) -> bool:
        """Record a change; whether to notify the members now."""
        if self.batch_ms:
            self._save(group, now_ms + self.batch_ms)
            return False
        if member_count <= SMALL_GROUP_SIZE:
            self.forget(group)  # this round covers the collected changes
            return True
        if group in self._due_ms:
            return False
        notified_ms = self._notified_ms.get(group)
        pause_ms = min(member_count, DELAY_MS_MAX)
        if notified_ms is None or now_ms - notified_ms >= pause_ms:
            self._notified_ms[group] = now_ms
            return True
        self._save(group, notified_ms + pause_ms)
        return False

    def _save(self, group: str, due_ms: int) -> None:
        if group not in self._due_ms:
            self._due_ms[group] = due_ms
            heapq.heappush(self._heap, (due_ms, group))

    def forget(self, group: str) -> None:
        """Drop the collected changes of a group, for example because it has no members."""
        self._due_ms.pop(group, None)
        self._notified_ms.pop(group, None)

    def next_due(self) -> int | None:
        """When :meth:`take_due` will next return a group; None while there is nothing."""
        self._drop_stale()
        return self._heap[0][0] if self._heap else None

    def take_due(self, now_ms: int) -> list[str]:
        """The groups to notify now."""
        groups = []
        self._drop_stale()
        while self._heap and self._heap[0][0] <= now_ms:
            _, group = heapq.heappop(self._heap)
            del self._due_ms[group]
            if not self.batch_ms:
                self._notified_ms[group] = now_ms
            groups.append(group)
            self._drop_stale()
        return groups

    def _drop_stale(self) -> None:
        while self._heap and self._due_ms.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)


class ConsumerTable:
    """All groups that have members."""

    def __init__(
        self,
        *,
        notify_enabled: bool = True,
        notice_batch_ms: int = 0,
        channel_expired_ms: int = CHANNEL_EXPIRED_MS,
        compensation_ms: int = COMPENSATION_MS,
    ) -> None:
        self._groups: dict[str, ConsumerGroup] = {}
        self._groups_of: dict[Peer, set[str]] = {}
        self.notify_enabled = notify_enabled
        self.notices = ChangeNotices(batch_ms=notice_batch_ms)
        self.channel_expired_ms = channel_expired_ms
        self.compensation_ms = compensation_ms
        # (group, topic) -> (subscription, time of the last pull), the oldest first
        self._compensation: dict[tuple[str, str], tuple[SubscriptionData, int]] = {}

    # --- events -----------------------------------------------------------------------------------

    def heartbeat(
        self,
        data: ConsumerData,
        channel: ClientChannel,
        now_ms: int,
        *,
        fingerprint: int = 0,
        without_sub: bool = False,
        notify: bool = True,
    ) -> HeartbeatResult:
        """One group of a heartbeat. ``notify`` is the group's notifyConsumerIdsChangedEnable."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = self._groups[data.group_name] = ConsumerGroup(data.group_name)
        sub_changed = group.fingerprint_changed(fingerprint, without_sub=without_sub)
        changed = group.join(data, channel, now_ms)
        self._groups_of.setdefault(channel.peer, set()).add(group.name)
        if fingerprint == 0 or not without_sub:
            changed |= group.subscribe(data.subscription_data_set)
            group.lint.update(channel.peer, channel.client_id, data.subscription_data_set)
        notice = self._notice_of(group, now_ms) if changed and notify else None
        return HeartbeatResult(changed=changed, sub_changed=sub_changed, notice=notice)

    def unregister(
        self, group_name: str, peer: Peer, now_ms: int, *, notify: bool = True
    ) -> Removed:
        """A client leaves one group (35)."""
        return self._remove(peer, [group_name], now_ms, notify=notify)

    def channel_closed(self, peer: Peer, now_ms: int) -> Removed:
        """A peer is gone: its client has left all its groups."""
        return self._remove(peer, sorted(self._groups_of.get(peer, ())), now_ms)

    def expire(self, now_ms: int) -> Expired:
        """Remove silent channels (without a notice) and old compensations; call it every 10 s."""
        peers: dict[Peer, None] = {}
        groups_gone = []
        for group in list(self._groups.values()):
            silent = [
                member.channel
                for member in group.members.values()
                if now_ms - member.last_update_ms > self.channel_expired_ms
            ]
            for channel in silent:
                logger.warning(
                    "consumer group %s: %s sent no heartbeat for too long", group.name, channel
                )
                self._take_out(group, channel.peer)
                peers[channel.peer] = None
            if not group.members:
                groups_gone.append(group.name)
        self._expire_compensation(now_ms)
        return Expired(peers=list(peers), groups_gone=groups_gone)

    def refresh(self, now_ms: int) -> None:
        """Renew every connected peer: a test that moves virtual time must not expire clients."""
        for group in self._groups.values():
            for peer, member in group.members.items():
                if not peer.is_closing:
                    member.last_update_ms = now_ms

    # --- collected notices ------------------------------------------------------------------------

    def due_notices(self, now_ms: int) -> list[GroupNotice]:
        """Notices whose time has come."""
        groups = map(self._groups.get, self.notices.take_due(now_ms))
        return [group.notice() for group in groups if group is not None]

    # --- subscriptions that came with a pull ------------------------------------------------------

    def compensate(self, group_name: str, data: SubscriptionData, now_ms: int) -> None:
        """Record the subscription of a pull (sysFlag 4), for groups that send no heartbeat."""
        key = (group_name, data.topic)
        self._compensation.pop(key, None)
        if len(self._compensation) >= COMPENSATION_COUNT_MAX:
            del self._compensation[next(iter(self._compensation))]
        self._compensation[key] = (data, now_ms)

    def _expire_compensation(self, now_ms: int) -> None:
        old = []
        for key, (_, pulled_ms) in self._compensation.items():
            if now_ms - pulled_ms <= self.compensation_ms:
                break
            old.append(key)
        for key in old:
            del self._compensation[key]

    # --- reading ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._groups)

    def groups(self) -> ValuesView[ConsumerGroup]:
        return self._groups.values()

    def group(self, name: str) -> ConsumerGroup | None:
        """The group, for the checks of a pull; None while it has no member."""
        return self._groups.get(name)

    def subscription(self, group_name: str, topic: str) -> SubscriptionData | None:
        """Return the subscription from heartbeats, else from pulls; for admin requests only."""
        group = self._groups.get(group_name)
        if group is not None and (data := group.subscriptions.get(topic)) is not None:
            return data
        data, _ = self._compensation.get((group_name, topic), (None, 0))
        return data

    def client_ids(self, group_name: str) -> list[str]:
        """The answer to 38; empty for a group without members, which is an error there."""
        group = self._groups.get(group_name)
        return group.client_ids() if group is not None else []

    def find(self, group_name: str, client_id: str) -> ClientChannel | None:
        """The newest channel of a client in a group (307, 309)."""
        group = self._groups.get(group_name)
        members = reversed(group.members.values()) if group is not None else ()
        for member in members:
            if member.channel.client_id == client_id:
                return member.channel
        return None

    def groups_of_topic(self, topic: str) -> list[str]:
        """The groups whose members subscribe to a topic (300)."""
        return [g.name for g in self._groups.values() if topic in g.subscriptions]

    def connection_list(self, group_name: str) -> ConsumerConnection | None:
        """The answer to 203; None for a group without members."""
        group = self._groups.get(group_name)
        if group is None:
            return None
        return ConsumerConnection(
            connection_set=[member.channel.body() for member in group.members.values()],
            subscription_table=dict(group.subscriptions),
            consume_type=group.consume_type,
            message_model=group.message_model,
            consume_from_where=group.consume_from_where,
        )

    def conflicts(self, group_name: str) -> list[SubscriptionConflict]:
        """Topics that members of a group subscribe to differently (extra field of 203)."""
        group = self._groups.get(group_name)
        return group.lint.conflicts() if group is not None else []

    def groups_in_conflict(self) -> list[str]:
        return [group.name for group in self._groups.values() if group.lint.in_conflict]

    # --- inside -----------------------------------------------------------------------------------

    def _notice_of(self, group: ConsumerGroup, now_ms: int) -> GroupNotice | None:
        """The notice to send now; None if it is collected for later or not needed."""
        if not self.notify_enabled or group.is_broadcasting:
            return None
        if not self.notices.changed(group.name, len(group.members), now_ms):
            return None
        return group.notice()

    def _remove(
        self,
        peer: Peer,
        group_names: Iterable[str],
        now_ms: int,
        *,
        notify: bool = True,
    ) -> Removed:
        notices = []
        groups_gone = []
        for name in group_names:
            group = self._groups.get(name)
            if group is None or peer not in group.members:
                continue
            logger.info("consumer group %s: %s left", name, group.members[peer].channel)
            self._take_out(group, peer)
            if not group.members:
                groups_gone.append(name)
            elif notify and (notice := self._notice_of(group, now_ms)) is not None:
                notices.append(notice)
        return Removed(notices=notices, groups_gone=groups_gone)

    def _take_out(self, group: ConsumerGroup, peer: Peer) -> None:
        group.leave(peer)
        group.lint.remove(peer)
        names = self._groups_of[peer]
        names.discard(group.name)
        if not names:
            del self._groups_of[peer]
        if not group.members:
            del self._groups[group.name]
            self.notices.forget(group.name)
