"""Constructors name the argument that a misspelt or foreign keyword stands for."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import skylark
import skylark.aio
import skylark.sync
from skylark import ClientOptions, ConfigError
from skylark.client.core.argument_checks import OTHER_NAMES, plain_name
from skylark.client.core.client_options import ClientOptions as Options
from skylark.core.errors import ClientError, InvalidMessageError

CLIENTS = [
    getattr(module, name)
    for module in (skylark.aio, skylark.sync)
    for name in (
        "Producer",
        "PushConsumer",
        "PopConsumer",
        "LitePullConsumer",
        "PullConsumer",
        "Admin",
    )
]
SETTINGS = (
    "core/client_options.py",
    "producer/producer_settings.py",
    "consumer/push/push_settings.py",
    "consumer/lite_pull/lite_pull_settings.py",
)


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", ["namesrv", "namesrvAddr", "name_server", "bootstrap_servers"])
@pytest.mark.parametrize("with_group", [True, False])
def test_the_name_server_belongs_to_the_options(client: Any, name: str, with_group: bool) -> None:
    """Also if the group is missing: that is not what the caller needs to know first."""
    group = ("g",) if with_group and client.__name__ != "Admin" else ()
    with pytest.raises(ConfigError) as caught:
        client(*group, **{name: "127.0.0.1:9876"})
    text = str(caught.value)
    assert f"{client.__name__} got an unexpected keyword argument {name!r}" in text
    assert "options=ClientOptions(namesrv=...)" in text
    assert isinstance(caught.value, TypeError)


@pytest.mark.parametrize("client", CLIENTS)
def test_every_client_suggests(client: Any) -> None:
    group = () if client.__name__ == "Admin" else ("g",)
    with pytest.raises(ConfigError, match=re.escape("did you mean options?")):
        client(*group, option=ClientOptions(namesrv="a:1"))
    with pytest.raises(ConfigError, match=r"options=ClientOptions\(instance_name=...\)"):
        client(*group, instanceName="x")
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'zzz'.*known: "):
        client(*group, zzz=1)


@pytest.mark.parametrize(
    ("client", "name", "hint"),
    [
        ("Producer", "sendMsgTimeout", "did you mean send_timeout, in seconds?"),
        ("Producer", "send_timout", "did you mean send_timeout, in seconds?"),
        ("Producer", "retryTimesWhenSendFailed", "did you mean retries?"),
        ("Producer", "compressMsgBodyOverHowmuch", "did you mean compress_over?"),
        ("Producer", "linger_ms", "did you mean linger, in seconds?"),
        ("PushConsumer", "consumeThreadMin", "did you mean concurrency?"),
        ("Producer", "max_retries", "did you mean retries?"),
        ("PushConsumer", "max_retries", "did you mean max_reconsume_times?"),
        ("PushConsumer", "retries", "did you mean max_reconsume_times?"),
        ("PushConsumer", "consumeTimeout", "did you mean consume_timeout, in seconds?"),
        ("PushConsumer", "auto_offset_reset", "did you mean consume_from_where?"),
        ("PushConsumer", "popInvisibleTime", "did you mean pop_invisible_time, in seconds?"),
        ("PopConsumer", "invisibleDuration", "did you mean invisible, in seconds?"),
        ("LitePullConsumer", "pollTimeoutMillis", "did you mean poll_timeout, in seconds?"),
        ("PullConsumer", "maxReconsumeTimes", "did you mean max_reconsume_times?"),
    ],
)
def test_names_of_java_and_kafka_and_slips_of_the_pen(client: str, name: str, hint: str) -> None:
    for module in (skylark.aio, skylark.sync):
        with pytest.raises(ConfigError) as caught:
            getattr(module, client)("g", ClientOptions(namesrv="a:1"), **{name: 1})
        assert hint in str(caught.value)


def test_options_suggest_too() -> None:
    for name in ("namesrvAddr", "name_server", "namsrv"):
        with pytest.raises(ConfigError, match=r"did you mean namesrv\?"):
            ClientOptions(**{name: "a:1"})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"did you mean heartbeat_interval, in seconds\?"):
        ClientOptions(heartbeatBrokerInterval=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("face", [skylark.aio, skylark.sync])
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("tag", "did you mean tags?"),
        ("retries", "it belongs to the constructor: PushConsumer(max_reconsume_times=...)"),
        ("concurency", "it belongs to the constructor: PushConsumer(concurrency=...)"),
        ("zzz", "known: batch, handler, orderly, sql, tags, topic"),
    ],
)
def test_a_subscription_suggests_too(face: Any, name: str, hint: str) -> None:
    consumer = face.PushConsumer("g", ClientOptions(namesrv="a:1"))
    with pytest.raises(ConfigError) as caught:
        consumer.subscribe("T", **{name: 1})
    sentence = f"PushConsumer.subscribe() got an unexpected keyword argument {name!r}: {hint}"
    assert str(caught.value) == sentence
    assert caught.value.__context__ is None  # one error, not two


@pytest.mark.parametrize("face", [skylark.aio, skylark.sync])
def test_tags_in_the_place_of_the_handler(face: Any) -> None:
    consumer = face.PushConsumer("g", ClientOptions(namesrv="a:1"))
    with pytest.raises(ClientError, match=r"is str, no function: .* tags='a \|\| b'"):
        consumer.subscribe("T", "a || b")


async def test_a_topic_and_a_body_instead_of_a_message() -> None:
    options = ClientOptions(namesrv="a:1")
    for given, sentence in (
        (("T", b"x"), "message must be a Message, not 'T': Message(topic, body)"),
        ((skylark.Message("T", b"x"), 3), "a send takes one message, and its options by keyword"),
    ):
        with pytest.raises(InvalidMessageError) as caught:
            skylark.sync.Producer("g", options).send(*given)
        assert sentence in str(caught.value)
        with pytest.raises(InvalidMessageError) as caught:
            await skylark.aio.Producer("g", options).send(*given)
        assert sentence in str(caught.value)


async def test_a_send_suggests_too() -> None:
    from skylark.client.producer.send_options import check_keywords

    with pytest.raises(ConfigError, match=r"did you mean delay_level\?"):
        check_keywords({"delayTimeLevel": 3})  # type: ignore[typeddict-unknown-key]


def test_every_java_name_in_a_comment_of_the_settings_is_known() -> None:
    root = Path(inspect.getfile(Options)).parent.parent
    found = 0
    for path in SETTINGS:
        lines = (root / path).read_text().splitlines()
        for index, line in enumerate(lines):
            match = re.search(r"#: ([a-z]+[A-Z]\w+): ", line)
            if match is None:
                continue
            owner = line if not line.strip().startswith("#") else lines[index + 1]
            name = re.match(r"    (\w+):", owner)
            assert name is not None, owner
            java = plain_name(match[1])
            assert OTHER_NAMES.get(java, java) == (
                name[1] if java in OTHER_NAMES else plain_name(name[1])
            )
            found += 1
    assert found > 35
