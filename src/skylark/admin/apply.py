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
from contextlib import suppress
from typing import Final, Literal, TypeAlias, TypeVar, cast

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
Permission: TypeAlias = Literal["r", "w", "rw"]

#: Start of the names of attributes among the settings of a topic.
_ATTRIBUTE: Final = "attributes."
#: What undo does not bring back after a deletion.
_LOST: Final[Mapping[Kind, str]] = {
    "topic": "the messages of topic",
    "group": "offsets and retries of group",
}


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
    perm: Permission | None = None
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


SpecT = TypeVar("SpecT", TopicSpec, GroupSpec)


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

    async def topic(self, spec: TopicSpec) -> None:
        present: dict[str, TopicSpec] = {}
        with suppress(NotFoundError):
            found = await self._admin.topics.describe(spec.name)
            if found.failures:
                raise PartialFailureError(found.failures, found.parts)
            present = {part.broker: _current_topic_spec(spec.name, part) for part in found.parts}
        self._compare("topic", spec, present, self.undo_topics)

    async def group(self, spec: GroupSpec) -> None:
        present: dict[str, GroupSpec] = {}
        with suppress(NotFoundError):
            found = await self._admin.groups.describe(spec.name)
            if found.failures:
                raise PartialFailureError(found.failures, found.configs)
            present = {entry.broker: _current_group_spec(entry) for entry in found.configs}
        self._compare("group", spec, present, self.undo_groups)

    def _compare(
        self, kind: Kind, spec: SpecT, present: Mapping[str, SpecT], undo: list[SpecT]
    ) -> None:
        """Plan the changes from the ``present`` state of each broker to the desired one."""
        if spec.absent:
            if present:
                self.changes.append(_change("delete", kind, spec.name, None))
                undo += present.values()
                self.stays.append(f"undo does not restore {_LOST[kind]} {spec.name}")
            return
        made = []
        for broker in self._brokers(spec.broker):
            fields = _differences(spec, present.get(broker))
            if broker not in present:
                made.append(broker)
                self.changes.append(_change("create", kind, spec.name, broker, fields))
            elif fields:
                self.changes.append(_change("change", kind, spec.name, broker, fields))
                old = {field.field: field.old for field in fields}
                undo.append(_spec(type(spec), spec.name, broker, old))
        if made and not present:
            undo.append(type(spec)(name=spec.name, absent=True))
        elif made:
            self.stays.append(f"undo does not delete {kind} {spec.name} on {', '.join(made)}")


def _change(
    action: Action, kind: Kind, name: str, broker: str | None, fields: tuple[FieldChange, ...] = ()
) -> Change:
    return Change(action=action, kind=kind, name=name, broker=broker, fields=fields)


def _settings(spec: TopicSpec | GroupSpec) -> dict[str, Value]:
    """The settings of a spec; each attribute of a topic is one."""
    values = msgspec.structs.asdict(spec)
    for name in ("name", "broker", "absent"):
        del values[name]
    if isinstance(spec, TopicSpec):
        del values["attributes"]
        if (count := values.pop("queues")) is not None:
            values |= {"read_queues": count, "write_queues": count}
        values |= {f"{_ATTRIBUTE}{key}": each for key, each in sorted(spec.attributes.items())}
    return values


def _differences(spec: SpecT, present: SpecT | None) -> tuple[FieldChange, ...]:
    """The settings that differ; for a new topic or group, those that the spec names."""
    have = {} if present is None else _settings(present)
    return tuple(
        FieldChange(field=name, old=have.get(name), new=value)
        for name, value in _settings(spec).items()
        if value != have.get(name) and (value is not None or name.startswith(_ATTRIBUTE))
    )


def _spec(kind: type[SpecT], name: str, broker: str, values: Mapping[str, Value]) -> SpecT:
    """The spec that sets these settings on one broker."""
    given: dict[str, object] = {k: v for k, v in values.items() if not k.startswith(_ATTRIBUTE)}
    if attributes := _attributes(values):
        given["attributes"] = attributes
    return msgspec.convert({"name": name, "broker": broker, **given}, kind)


def _attributes(values: Mapping[str, Value]) -> dict[str, str | None]:
    return {
        name.removeprefix(_ATTRIBUTE): None if value is None else str(value)
        for name, value in values.items()
        if name.startswith(_ATTRIBUTE)
    }


def _current_topic_spec(name: str, part: TopicPart) -> TopicSpec:
    return TopicSpec(
        name=name,
        broker=part.broker,
        read_queues=part.read_queue_count,
        write_queues=part.write_queue_count,
        perm=cast("Permission | None", part.perm or None),
        order=part.order,
        attributes=dict(part.attributes),
    )


def _current_group_spec(entry: GroupOnBroker) -> GroupSpec:
    names = GroupSpec.__struct_fields__[3:]  # after name, broker and absent
    values = {name: getattr(entry.config, name) for name in names}
    return GroupSpec(name=entry.config.group_name, broker=entry.broker, **values)


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
    attributes = _attributes(new)
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
