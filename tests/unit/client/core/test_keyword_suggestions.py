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
