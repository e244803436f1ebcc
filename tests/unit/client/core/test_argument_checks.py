"""Wrong arguments: an error of ours that names the argument, never one from inside."""

from __future__ import annotations

import asyncio
import inspect
import math
import re
import typing
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from skylark import ClientOptions, Message, MessageQueue, SkylarkError, aio, sync
from skylark.client.consumer.allocation import Allocation, Averagely
from skylark.client.consumer.lite_pull.lite_pull_settings import LitePullSettings
from skylark.client.core.argument_checks import check_fields, checks_arguments, describe, fits
from skylark.core.errors import ClientError, ConfigError
from tests.unit.client.consumer.pull_world import PullWorld, pull_world, queue

GROUP_TOO_LONG = "g" * 121


# ---- values and annotations ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "kind", "is_so"),
    [
        (1, int, True), (True, int, False), (2**63, int, False), (-(2**63), int, True),
        (1, float, True), (1.5, float, True), (math.nan, float, False),
        (math.inf, float, False), (10**400, float, False),
        ("a", str, True), (b"a", str, False), (None, str | None, True), (None, str, False),
        (["a"], list[str], True), ("ab", typing.Sequence[str], False),
        ([1], typing.Sequence[str], False), ({"a": 1}, typing.Mapping[str, int], True),
        ({"a": "1"}, typing.Mapping[str, int], False), (("a", "b"), tuple[str, str], True),
        (("a",), tuple[str, str], False), ((1, 2, 3), tuple[int, ...], True),
        ("x", Path, True), (5, Path, False), (len, Callable[..., object], True),
        (5, Callable[..., object], False), ("a", typing.Literal["a"], True),
        ("b", typing.Literal["a"], False), (Averagely(), Allocation, True), (5, Allocation, False),
        (queue(), MessageQueue, True), (5, Any, True), (timedelta(1), float | timedelta, True),
        (MessageQueue(topic="T", broker_name="b", queue_id="0"), MessageQueue, False),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_a_value_fits_its_annotation_or_not(value: object, kind: Any, is_so: bool) -> None:
    assert fits(value, kind) is is_so


def test_annotations_in_words() -> None:
    words = "text or a list of text or None"
    assert describe(str | typing.Sequence[str] | None) == words
    assert describe(typing.Mapping[MessageQueue, int]) == (
        "a mapping of a MessageQueue to a whole number"
    )
    assert describe(Allocation) == "an Allocation"


@checks_arguments
class Example:
    def call(self, queue: MessageQueue, offset: int = 0, *, note: str | None = None) -> str:
        return f"{queue.queue_id} {offset} {note}"


def test_a_method_names_the_argument_and_what_it_wants() -> None:
    example: Any = Example()
    assert example.call(queue(3), 5, note="n") == "3 5 n"
    for args, kwargs, sentence in (
        ((None,), {}, "queue must be a MessageQueue, not None"),
        ((queue(), "5"), {}, "offset must be a whole number, not '5'"),
        ((queue(),), {"note": 5}, "note must be text or None, not 5"),
        (
            (MessageQueue(topic="T", broker_name=None, queue_id=0),),  # type: ignore[arg-type]
            {},
            "queue.broker_name must be text, not None",
        ),
    ):
        with pytest.raises(ClientError) as caught:
            example.call(*args, **kwargs)
        assert str(caught.value) == sentence
    with pytest.raises(TypeError, match=r"Example.call\(\) got .* 'nite': did you mean note\?"):
        example.call(queue(), nite="x")
    with pytest.raises(
        TypeError, match="missing 1 required positional argument: 'queue'"
    ) as raised:
        example.call()
    assert raised.value.__context__ is None  # one error, not two
    with pytest.raises(TypeError, match="missing 2 required"):
        Example.call()  # type: ignore[call-arg]


# ---- constructors --------------------------------------------------------------------------------

CONSTRUCTORS: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    ("Producer", (None,), {}, "the name of a group is text"),
    ("Producer", ("",), {}, "blank"),
    ("Producer", (GROUP_TOO_LONG,), {}, "120"),
    (
        "Producer",
        ("g", "127.0.0.1:9876"),
        {},
        "options must be ClientOptions, not '127.0.0.1:9876'",
    ),
    ("Producer", ("g",), {"send_timeout": "3"}, "send_timeout must be a number, not '3'"),
    ("Producer", ("g",), {"send_timeout": None}, "send_timeout must be a number, not None"),
    ("Producer", ("g",), {"send_timeout": -1}, "send_timeout must be positive"),
    ("Producer", ("g",), {"retries": -1}, "retries must be zero or more"),
    ("Producer", ("g",), {"retries": True}, "retries must be a whole number, not True"),
    ("Producer", ("g",), {"topics": "T"}, "topics must be a list of text, not 'T'"),
    ("Producer", ("g",), {"retry_codes": 2}, "retry_codes must be a list of a whole number"),
    ("Producer", ("g",), {"compress_type": "GZIP"}, "compress_type must be one of"),
    (
        "Producer",
        ("g",),
        {"send_timout": 3},
        "unexpected keyword argument 'send_timout': did you mean send_timeout, in seconds?",
    ),
    ("Producer", ("g",), {"hooks": 5}, "hooks must be a list of objects, not 5"),
    ("Producer", ("g",), {"transaction_listener": 5}, "transaction_listener 5 has no method"),
    ("PushConsumer", (5,), {}, "the name of a group is text"),
    ("PushConsumer", ("g", {}), {}, "options must be ClientOptions, not a dict"),
    ("PushConsumer", ("g",), {"concurrency": 0}, "concurrency is out of range [1, 1000]"),
    ("PushConsumer", ("g",), {"concurrency": "20"}, "concurrency must be a whole number"),
    ("PushConsumer", ("g",), {"consume_timeout": None}, "consume_timeout must be a number or"),
    ("PushConsumer", ("g",), {"message_model": "BROADCASTING"}, "message_model must be a MessageM"),
    ("PushConsumer", ("g",), {"allocation": "AVG"}, "allocation must be an Allocation, not 'AVG'"),
    ("PushConsumer", ("g",), {"queue_listener": 5}, "must be a function"),
    ("PushConsumer", ("g",), {"offset_folder": 5}, "offset_folder must be a path or None, not 5"),
    ("PushConsumer", ("g",), {"consume_timestamp": 5}, "consume_timestamp must be text or a date"),
    ("PushConsumer", ("g",), {"concurency": 5}, "did you mean concurrency?"),
    ("LitePullConsumer", ([],), {}, "the name of a group is text"),
    ("LitePullConsumer", ("g",), {"poll_timeout": "5"}, "poll_timeout must be a number, not '5'"),
    ("LitePullConsumer", ("g",), {"pull_batch_size": None}, "pull_batch_size must be a whole"),
    ("LitePullConsumer", ("g",), {"auto_commit": "no"}, "auto_commit must be True or False"),
    ("LitePullConsumer", ("g",), {"batch_size": 5}, "did you mean pull_batch_size?"),
    ("PullConsumer", ("",), {}, "blank"),
    ("PullConsumer", ("g",), {"message_model": "CLUSTERING"}, "message_model must be a Message"),
    ("PullConsumer", ("g",), {"allocation": 5}, "allocation must be an Allocation, not 5"),
    ("PullConsumer", ("g",), {"max_reconsume_times": -1}, "max_reconsume_times must be 0 or more"),
    ("PullConsumer", ("g",), {"offset_folder": b"x"}, "offset_folder must be a path or None"),
    ("PullConsumer", ("g",), {"hooks": "x"}, "hooks must be a list of objects"),
    ("PullSchedule", (None,), {}, "consumer must be a PullConsumer, not None"),
    ("Admin", (5,), {}, "options must be ClientOptions, not 5"),
    ("Admin", (), {"timeout": "6"}, "timeout must be a number of seconds or a timedelta, not '6'"),
    ("Admin", (), {"timeout": 0}, "timeout must be positive"),
]


@pytest.mark.parametrize("face", [aio, sync], ids=["aio", "sync"])
@pytest.mark.parametrize(
    ("name", "args", "kwargs", "sentence"),
    CONSTRUCTORS,
    ids=[f"{name}-{number}" for number, (name, *_) in enumerate(CONSTRUCTORS)],
)
def test_constructors(
    face: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(SkylarkError, match=re.escape(sentence)):
        getattr(face, name)(*args, **kwargs)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"namesrv": 5}, "namesrv must be text or a list of text or None, not 5"),
        ({"namesrv": [5]}, "namesrv must be"),
        ({"acl": "user:secret"}, "acl must be (text, text) or (text, text, text) or None"),
        ({"acl": ("user",)}, "acl must be"),
        ({"acl": ("user", "")}, "acl must have an access key and a secret key"),
        ({"namespace": 5}, "namespace must be text or None, not 5"),
        ({"namespace": "n" * 300}, "namespace must have at most 255 characters"),
        ({"instance_name": ""}, "instance_name and client_ip must not be empty"),
        ({"request_timeout": "3"}, "request_timeout must be a number or a timedelta, not '3'"),
        ({"request_timeout": math.nan}, "request_timeout must be"),
        ({"request_timeout": -1}, "request_timeout must be positive"),
        ({"trace_batch": 2.5}, "trace_batch must be a whole number, not 2.5"),
        ({"rpc_hooks": "x"}, "rpc_hooks must be a list of"),
        ({"metrics": "yes"}, "metrics must be a Registry or True or False, not 'yes'"),
        ({"access_channel": "LAN"}, "access_channel is LOCAL or CLOUD"),
    ],
)
def test_options(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        ClientOptions(**given)


def test_fields_are_checked_by_their_annotation() -> None:
    check_fields(LitePullSettings())


# ---- every method, with everything ---------------------------------------------------------------

Q = queue()
GOOD: dict[str, Any] = {
    "topic": "T", "group": "g", "queue": Q, "offset": 0, "queues": [Q], "time": datetime.now(UTC),
    "tags": "A", "message": Message("T", b"x"), "messages": [Message("T", b"x")], "handle": "h",
    "message_id": "0A000001303912345678075BCD150007", "moment": 0, "source": "g", "target": "h",
    "offsets": {Q: 0}, "broker": "broker-a", "name": "TOPIC_PUT_NUMS", "key": "k", "namespace": "n",
    "value": "v", "client_id": "c", "changes": {}, "to": "earliest", "listener": print,
    "callback": print, "handler": print, "request": None, "body": b"x", "checker": print,
}  # fmt: skip
WRONG: list[Any] = [
    None, True, -1, 0, 1.5, math.nan, 2**40, 2**70, "", " ", "no", "x" * 1000, "a\x02b", "ä\ud800",
    b"x", [], [None], {}, {"a": None}, {Q: -1}, object(), print, timedelta(-1),
    datetime.min.replace(tzinfo=UTC),
    MessageQueue(topic="T", broker_name="nowhere", queue_id=0),
    MessageQueue(topic="T", broker_name="broker-a", queue_id=-1),
    MessageQueue(topic=None, broker_name=None, queue_id=None),  # type: ignore[arg-type]
    Message("T", b"x"), Message("", b""), Message("T", "text"), Message(None, None),  # type: ignore[arg-type]
    Message("T", b"x", tag=5), Message("T", b"x", keys=5), Message("T", b"x", flag="x"),  # type: ignore[arg-type]
    Message("T", b"x", properties=5), Message("T", b"x", properties={"a": 5}),  # type: ignore[arg-type, dict-item]
    Message("T", b"x", keys=[b"k"]), Message(["T"], b"x"),  # type: ignore[arg-type, list-item]
]  # fmt: skip
#: They end the object, wait for signals, or are not for applications.
LEFT_OUT = {"start", "stop", "run", "run_until", "queue_opened", "queue_released", "queues_settled",
            "session", "refuse_in_handler", "flush"}  # fmt: skip
SEND_KEYWORDS = ("queue", "selector", "shard", "delay", "delay_level", "deliver_at", "timeout")


def calls_of(target: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Each public method with each argument wrong, the others right."""
    for name in dir(type(target)):
        function = inspect.getattr_static(type(target), name)
        if name.startswith("_") or name in LEFT_OUT or not inspect.isfunction(function):
            continue
        parameters = [
            each
            for each in list(inspect.signature(function).parameters.values())[1:]
            if each.kind is not each.VAR_POSITIONAL
        ]
        good = {
            each.name: GOOD.get(each.name)
            for each in parameters
            if each.default is each.empty and each.kind is not each.VAR_KEYWORD
        }
        wanted = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
        if len(wanted) < len(parameters):
            wanted += SEND_KEYWORDS
        for wrong_name in wanted:
            for number, value in enumerate(WRONG):
                given = {**good, wrong_name: value}
                method = getattr(target, name)
                yield (
                    f"{name}({wrong_name}=#{number} {value!r:.40})",
                    lambda method=method, given=given: method(**given),  # type: ignore[misc]
                )


async def outcome_of(w: PullWorld, call: Callable[[], Any]) -> BaseException | None:
    """What a call raises; a call that waits longer than half a minute is well."""
    try:
        found = call()
        if inspect.isasyncgen(found):
            found = anext(found, None)
        while inspect.isawaitable(found):  # submit gives a future
            found = await finished(w, found)
    except BaseException as error:  # noqa: BLE001 - that is what is asked for
        return error
    return None


async def finished(w: PullWorld, work: Awaitable[Any]) -> Any:
    task = asyncio.ensure_future(work)
    for _ in range(8):
        await w.clock.drain()
        if task.done():
            return task.result()
        await w.clock.advance(seconds=5)
    task.cancel()
    await asyncio.wait([task])
    return None


async def sweep(w: PullWorld, *targets: Any) -> str:
    """Calls that raise something else than an error of ours, one in a line."""
    bad = []
    for target in targets:
        for name, call in calls_of(target):
            error = await outcome_of(w, call)
            if error is not None and (not isinstance(error, SkylarkError) or not str(error)):
                bad.append(f"{type(target).__name__}.{name}: {error!r:.200}")
    return "\n".join(bad)


async def test_producer_methods(tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        producer = aio.Producer("pg", w.options(), runtime=w.runtime, send_timeout=1)
        await w.finish(producer.start())
        producer.transaction_checker(lambda message: None)
        try:
            assert await sweep(w, producer) == ""
        finally:
            await w.finish(producer.stop())


@pytest.mark.parametrize("kind", ["lite", "classic", "push"])
async def test_consumer_methods(kind: str, tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        consumer: Any
        if kind == "lite":
            consumer = aio.LitePullConsumer("g", w.options(), runtime=w.runtime).assign([queue()])
        elif kind == "classic":
            consumer = aio.PullConsumer("g", w.options(), runtime=w.runtime)
        else:
            consumer = aio.PushConsumer("g", w.options(), runtime=w.runtime)
            consumer.subscribe("T", print)
        await w.finish(consumer.start())
        try:
            assert await sweep(w, consumer) == ""
        finally:
            await w.finish(consumer.stop())


FAMILIES = ["topics", "groups", "offsets", "stats", "messages", "dlq", "settings"]


@pytest.mark.parametrize("family", FAMILIES)
async def test_admin_functions(family: str, tmp_path: Path) -> None:
    async with pull_world(tmp_path) as w:
        admin = aio.Admin(w.options(), runtime=w.runtime)
        await w.finish(admin.start())
        try:
            assert await sweep(w, getattr(admin, family)) == ""
        finally:
            await w.finish(admin.stop())


ARROW_WRONG: list[dict[str, Any]] = [
    {"topic": None}, {"topic": ""}, {"topic": 5}, {"topic": "x" * 1000}, {"options": 5},
    {"start": None}, {"start": 5}, {"start": "first"}, {"start": {"q": 1}},
    {"start": {("b", 0): -1}},
    {"start": {("b", 0): "x"}}, {"end": 1.5}, {"end": []}, {"end": {("b", "0"): 1}}, {"tags": 5},
    {"tags": "||"}, {"columns": 5}, {"columns": "body"}, {"columns": ["nothing"]}, {"columns": [5]},
]  # fmt: skip


@pytest.mark.parametrize("given", ARROW_WRONG, ids=str)
def test_read_arrow(given: dict[str, Any]) -> None:
    pytest.importorskip("pyarrow", reason="the extra is not installed")
    given = {"topic": "T", "options": ClientOptions(namesrv="127.0.0.1:1"), **given}
    with pytest.raises(SkylarkError) as caught:
        list(sync.read_arrow(**given))
    assert "127.0.0.1:1" not in str(caught.value)  # it was refused before anybody was asked
