"""Compares topics and groups with a description, applies the differences, and can undo them.

::

    plan = await make_plan(admin, Desired(topics=(TopicSpec(name="orders", queues=8),)))
    for change in plan.changes:
        print(change.action, change.kind, change.name, change.broker, change.fields)
    await apply_plan(admin, plan)
    await apply_plan(admin, await make_plan(admin, plan.undo))      # undo

Settings that a spec does not name are not changed, and applying the same specs again changes
nothing. A topic or group is compared on every master, or on the one broker that the spec names, and
created where it is missing. ``absent`` deletes it.

**Undo** is a :class:`Desired` too: changed settings get their old values, per broker; created
topics and groups become absent. Three things cannot be undone: messages of a deleted topic, offsets
of a deleted group, and a topic or group that was created on some brokers while others already had
it; it stays there. ``plan.stays`` lists them.

Brokers accept one topic or group at a time, so a plan that fails in the middle is applied in part.
A new plan can be made and applied; the undo of the first plan still restores the original state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec

from skylark.admin.admin_client import Admin
from skylark.admin.errors import NotFoundError, PartialFailureError
from skylark.admin.group_operations import GroupOnBroker
from skylark.admin.topic_operations import TopicPart
from skylark.core.errors import InvalidParameterError
from skylark.core.names import group_problem, topic_problem
from skylark.wire.bodies.config import SubscriptionGroupConfig

Kind: TypeAlias = Literal["topic", "group"]
Action: TypeAlias = Literal["create", "change", "delete"]
Value: TypeAlias = bool | int | str | None

#: Settings of groups that a spec may have, with the broker's names.
GROUP_FIELDS: Final = (
    "consume_enable",
    "consume_from_min_enable",
    "consume_broadcast_enable",
    "consume_message_orderly",
    "retry_queue_nums",
    "retry_max_times",
    "consume_timeout_minute",
)


class TopicSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The desired state of a topic; None: unchanged, or the default if it is created."""

    name: str
    broker: str | None = None  #: None: all masters
    absent: bool = False
    queues: int | None = None  #: sets read_queues and write_queues
    read_queues: int | None = None
    write_queues: int | None = None
    perm: Literal["r", "w", "rw"] | None = None
    order: bool | None = None
    attributes: dict[str, str | None] = {}  #: None removes the attribute


class GroupSpec(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The desired state of a consumer group; None: unchanged, or the default if it is created."""

    name: str
    broker: str | None = None  #: None: all masters
    absent: bool = False
    consume_enable: bool | None = None
    consume_from_min_enable: bool | None = None
    consume_broadcast_enable: bool | None = None
    consume_message_orderly: bool | None = None
    retry_queue_nums: int | None = None
    retry_max_times: int | None = None
    consume_timeout_minute: int | None = None


class Desired(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The desired state of topics and groups; the content of a file."""

    topics: tuple[TopicSpec, ...] = ()
    groups: tuple[GroupSpec, ...] = ()


class FieldChange(msgspec.Struct, frozen=True, kw_only=True):
    """The change of one setting."""

    field: str
    old: Value
    new: Value


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """The change of a topic or group on one broker; a deletion applies to all brokers."""

    action: Action
    kind: Kind
    name: str
    broker: str | None
    fields: tuple[FieldChange, ...] = ()


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The changes in order, and their undo."""

    changes: tuple[Change, ...]
    undo: Desired
    stays: tuple[str, ...] = ()  #: sentences about what undo does not restore

    @property
    def deletes(self) -> tuple[Change, ...]:
        return tuple(change for change in self.changes if change.action == "delete")


# ---- the plan ------------------------------------------------------------------------------------


async def make_plan(admin: Admin, desired: Desired) -> Plan:
    """Compare the desired with the current state; changes nothing.

    Raises InvalidParameterError for invalid specs, NotFoundError for an unknown broker, and
    PartialFailureError if a broker does not respond.
    """
    check(desired)
    planner = _Planner(admin, await admin.session.masters())
    for topic in desired.topics:
        await planner.topic(topic)
    for group in desired.groups:
        await planner.group(group)
    return Plan(
        changes=tuple(planner.changes),
        undo=Desired(
            topics=tuple(reversed(planner.undo_topics)),
            groups=tuple(reversed(planner.undo_groups)),
        ),
        stays=tuple(planner.stays),
    )


def check(desired: Desired) -> None:
    """Raise InvalidParameterError for invalid or contradictory specs."""
    for kind, specs in (("topic", desired.topics), ("group", desired.groups)):
        seen: set[tuple[str, str | None]] = set()
        for spec in specs:
            problem = topic_problem(spec.name) if kind == "topic" else group_problem(spec.name)
            if problem is not None:
                raise InvalidParameterError(problem)
            if (spec.name, spec.broker) in seen:
                raise InvalidParameterError(f"{kind} {spec.name} is described twice")
            seen.add((spec.name, spec.broker))
            if spec.absent and spec != type(spec)(name=spec.name, absent=True):
                raise InvalidParameterError(
                    f"{kind} {spec.name} is absent: it cannot have other settings"
                )
    for topic in desired.topics:
        if topic.queues is not None and (topic.read_queues, topic.write_queues) != (None, None):
            raise InvalidParameterError(
                f"topic {topic.name}: queues sets both read_queues and write_queues"
            )


class _Planner:
    def __init__(self, admin: Admin, masters: Mapping[str, str]) -> None:
        self._admin = admin
        self._masters = masters
        self.changes: list[Change] = []
        self.undo_topics: list[TopicSpec] = []
        self.undo_groups: list[GroupSpec] = []
        self.stays: list[str] = []

    def _brokers(self, broker: str | None) -> list[str]:
        if broker is None:
            return list(self._masters)
        if broker not in self._masters:
            known = ", ".join(self._masters)
            raise NotFoundError(f"broker {broker} does not exist", hint=f"known: {known}")
        return [broker]

    # ---- topics ----------------------------------------------------------------------------------

    async def topic(self, spec: TopicSpec) -> None:
        parts = await self._parts(spec.name)
        if spec.absent:
            if parts:
                self.changes.append(_change("delete", "topic", spec.name, None))
                self.undo_topics += [
                    _current_topic_spec(spec.name, part) for part in parts.values()
                ]
                self.stays.append(f"undo does not restore the messages of topic {spec.name}")
            return
        for broker in self._brokers(spec.broker):
            part = parts.get(broker)
            fields = _topic_fields(spec, part)
            if part is None:
                self.changes.append(_change("create", "topic", spec.name, broker, fields))
            elif fields:
                self.changes.append(_change("change", "topic", spec.name, broker, fields))
                self.undo_topics.append(_topic_undo(spec.name, part, fields))
        made = [broker for broker in self._brokers(spec.broker) if broker not in parts]
        if made and not parts:
            self.undo_topics.append(TopicSpec(name=spec.name, absent=True))
        elif made:
            self.stays.append(f"undo does not delete topic {spec.name} on {', '.join(made)}")

    async def _parts(self, topic: str) -> dict[str, TopicPart]:
        try:
            found = await self._admin.topics.describe(topic)
        except NotFoundError:
            return {}
        if found.failures:
            raise PartialFailureError(found.failures, found.parts)
        return {part.broker: part for part in found.parts}

    # ---- groups ----------------------------------------------------------------------------------

    async def group(self, spec: GroupSpec) -> None:
        configs = await self._configs(spec.name)
        if spec.absent:
            if configs:
                self.changes.append(_change("delete", "group", spec.name, None))
                self.undo_groups += [_current_group_spec(entry) for entry in configs.values()]
                self.stays.append(f"undo does not restore offsets and retries of group {spec.name}")
            return
        for broker in self._brokers(spec.broker):
            entry = configs.get(broker)
            fields = _group_fields(spec, None if entry is None else entry.config)
            if entry is None:
                self.changes.append(_change("create", "group", spec.name, broker, fields))
            elif fields:
                self.changes.append(_change("change", "group", spec.name, broker, fields))
                old = {field.field: field.old for field in fields}
                self.undo_groups.append(_group_spec(spec.name, broker, old))
        made = [broker for broker in self._brokers(spec.broker) if broker not in configs]
        if made and not configs:
            self.undo_groups.append(GroupSpec(name=spec.name, absent=True))
        elif made:
            self.stays.append(f"undo does not delete group {spec.name} on {', '.join(made)}")

    async def _configs(self, group: str) -> dict[str, GroupOnBroker]:
        try:
            found = await self._admin.groups.describe(group)
        except NotFoundError:
            return {}
        if found.failures:
            raise PartialFailureError(found.failures, found.configs)
        return {entry.broker: entry for entry in found.configs}


def _change(
    action: Action, kind: Kind, name: str, broker: str | None, fields: tuple[FieldChange, ...] = ()
) -> Change:
    return Change(action=action, kind=kind, name=name, broker=broker, fields=fields)


def _topic_fields(spec: TopicSpec, part: TopicPart | None) -> tuple[FieldChange, ...]:
    """The settings that differ; for a new topic, those that the spec names."""
    wanted: dict[str, Value] = {
        "read_queues": spec.read_queues if spec.queues is None else spec.queues,
        "write_queues": spec.write_queues if spec.queues is None else spec.queues,
        "perm": spec.perm,
        "order": spec.order,
    }
    present: dict[str, Value] = {}
    attributes: Mapping[str, str] = {}
    if part is not None:
        present = {
            "read_queues": part.read_queue_count,
            "write_queues": part.write_queue_count,
            "perm": part.perm,
            "order": part.order,
        }
        attributes = part.attributes
    changes = [
        FieldChange(field=name, old=present.get(name), new=value)
        for name, value in wanted.items()
        if value is not None and value != present.get(name)
    ]
    changes += [
        FieldChange(field=f"attributes.{key}", old=attributes.get(key), new=value)
        for key, value in sorted(spec.attributes.items())
        if attributes.get(key) != value
    ]
    return tuple(changes)


def _topic_undo(name: str, part: TopicPart, fields: tuple[FieldChange, ...]) -> TopicSpec:
    old = {change.field: change.old for change in fields}
    attributes = {
        change.field.removeprefix("attributes."): None if change.old is None else str(change.old)
        for change in fields
        if change.field.startswith("attributes.")
    }
    values = {key: value for key, value in old.items() if not key.startswith("attributes.")}
    return msgspec.convert(
        {"name": name, "broker": part.broker, "attributes": attributes, **values}, TopicSpec
    )


def _current_topic_spec(name: str, part: TopicPart) -> TopicSpec:
    values = {
        "name": name,
        "broker": part.broker,
        "read_queues": part.read_queue_count,
        "write_queues": part.write_queue_count,
        "perm": part.perm or None,
        "order": part.order,
        "attributes": dict(part.attributes),
    }
    return msgspec.convert(values, TopicSpec)


def _group_fields(
    spec: GroupSpec, config: SubscriptionGroupConfig | None
) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(field=name, old=None if config is None else getattr(config, name), new=value)
        for name in GROUP_FIELDS
        if (value := getattr(spec, name)) is not None
        and (config is None or getattr(config, name) != value)
    )


def _group_spec(name: str, broker: str, values: Mapping[str, Value]) -> GroupSpec:
    return msgspec.convert({"name": name, "broker": broker, **values}, GroupSpec)


def _current_group_spec(entry: GroupOnBroker) -> GroupSpec:
    values = {name: getattr(entry.config, name) for name in GROUP_FIELDS}
    return _group_spec(entry.config.group_name, entry.broker, values)


# ---- apply ---------------------------------------------------------------------------------------


async def apply_plan(
    admin: Admin, plan: Plan, on_done: Callable[[Change], object] | None = None
) -> None:
    """Apply a plan in its order; ends at the first error. Calls ``on_done`` after each change.

    Raises BrokerError if a broker refuses a change, PartialFailureError.
    """
    for change in plan.changes:
        await (_apply_topic if change.kind == "topic" else _apply_group)(admin, change)
        if on_done is not None:
            on_done(change)


async def _apply_topic(admin: Admin, change: Change) -> None:
    name, broker = change.name, change.broker
    if change.action == "delete":
        await admin.topics.delete(name)
        return
    new = {field.field: field.new for field in change.fields}
    attributes = {
        field.removeprefix("attributes."): None if value is None else str(value)
        for field, value in new.items()
        if field.startswith("attributes.")
    }
    if change.action == "create":
        given = {key: value for key, value in attributes.items() if value is not None}
        await admin.topics.create(name, attributes=given, broker=broker)
        attributes = {}
    read, write = new.get("read_queues"), new.get("write_queues")
    perm, order = new.get("perm"), new.get("order")
    if read is write is perm is order is None and not attributes:
        return
    await admin.topics.update(
        name,
        read_queue_count=None if read is None else int(read),
        write_queue_count=None if write is None else int(write),
        perm=None if perm is None else str(perm),
        order=None if order is None else bool(order),
        attributes=attributes,
        broker=broker,
    )


async def _apply_group(admin: Admin, change: Change) -> None:
    if change.action == "delete":
        await admin.groups.delete(change.name)
        return
    config = SubscriptionGroupConfig(group_name=change.name)
    if change.action == "change":
        found = await admin.groups.describe(change.name)
        config = next(entry.config for entry in found.configs if entry.broker == change.broker)
    values = {field.field: field.new for field in change.fields}
    await admin.groups.put(msgspec.structs.replace(config, **values), broker=change.broker)
