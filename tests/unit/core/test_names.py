"""core/names.py: names by Java's rules and words, namespaces, addresses, name-server sources."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core import names
from skylark.core.errors import ConfigError
from skylark.core.names import Address, Endpoint, IllegalNameError

LETTERS_127 = "T" * 127


@pytest.mark.parametrize(
    "topic",
    ["a", "TopicTest", "a-b_c|d%e", "0", LETTERS_127, "%RETRY%" + "g" * 248, "%DLQ%" + "g" * 250],
)
def test_legal_topics(topic: str) -> None:
    assert names.topic_problem(topic) is None
    names.check_topic(topic)


# The second and third are remarks recorded from Apache RocketMQ 5.5.0 (errors.jsonl).
@pytest.mark.parametrize(
    ("topic", "remark"),
    [
        ("", "The specified topic is blank."),
        (" \t\n", "The specified topic is blank."),
        (
            "Frame A",
            "The specified topic: Frame A, contains illegal characters, "
            "allowing only ^[%|a-zA-Z0-9_-]+$",
        ),
        (
            LETTERS_127 + "T",
            f"The specified topic: {LETTERS_127}T, is longer than topic max length: 127",
        ),
        (
            "%RETRY%" + "g" * 249,
            f"The specified topic is DLQ or Retry topic: %RETRY%{'g' * 249}, and it's longer than "
            "topic max length: 255",
        ),
    ],
)
def test_illegal_topics_and_their_remarks(topic: str, remark: str) -> None:
    assert names.topic_problem(topic) == remark
    with pytest.raises(IllegalNameError) as raised:
        names.check_topic(topic)
    assert str(raised.value) == remark


@pytest.mark.parametrize("name", ["a.b", "a\n", "ä", "a+b", "a/b", "a b", "\uff41", "a\x00"])
def test_illegal_characters(name: str) -> None:
    assert "contains illegal characters" in (names.topic_problem(name) or "")
    assert "contains illegal characters" in (names.group_problem(name) or "")


def test_groups() -> None:
    assert names.group_problem("g" * 120) is None
    assert names.group_problem("g" * 121) == (
        f"The specified group: {'g' * 121}, is longer than group max length: 120"
    )
    assert names.group_problem("") == "The specified group is blank."
    assert names.group_problem("../g") == (
        "The specified group: ../g, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"
    )
    names.check_group("CID_ONS-HTTP-PROXY")
    with pytest.raises(IllegalNameError, match="group max length: 120"):
        names.check_group("%RETRY%" + "g" * 114)


def test_system_topics() -> None:
    for topic in ("TBW102", "BenchmarkTest", "CHECKPOINT_TOPIC", "rmq_sys_anything"):
        assert names.is_system_topic(topic)
    assert not names.is_system_topic("RMQ_SYS_OTHER")
    assert not names.is_system_topic("DefaultCluster")
    extra = names.broker_system_topics("DefaultCluster", "broker-a")
    assert extra == {
        "DefaultCluster",
        "broker-a",
        "DefaultCluster_REPLY_TOPIC",
        "rmq_sys_REVIVE_LOG_DefaultCluster",
        "rmq_sys_SYNC_BROKER_MEMBER_broker-a",
    }
    assert names.is_system_topic("DefaultCluster", extra)
    # Both remarks as recorded from Apache RocketMQ 5.5.0.
    assert names.system_topic_problem("TBW102") == (
        "The topic[TBW102] is conflict with system topic."
    )
    assert names.system_topic_problem("mine", extra) is None
    assert names.send_problem("SCHEDULE_TOPIC_XXXX") == (
        "Sending message to topic[SCHEDULE_TOPIC_XXXX] is forbidden."
    )
    assert names.send_problem("TBW102") is None
    assert len(names.SEND_FORBIDDEN_TOPICS) == 8


def test_topics_of_transactions_belong_to_the_broker() -> None:
    topics = {name for name in names.SYSTEM_TOPICS if "_TRANS_" in name}
    assert topics == {
        "RMQ_SYS_TRANS_HALF_TOPIC",
        "RMQ_SYS_TRANS_OP_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC",
        "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC",
    }
    assert topics <= names.SEND_FORBIDDEN_TOPICS


def test_system_groups() -> None:
    assert names.is_system_group("CID_RMQ_SYS_TRANS")
    assert not names.is_system_group("TOOLS_CONSUMER")
    assert len(names.BUILT_IN_GROUPS) == 8
    assert all(names.group_problem(group) is None for group in names.BUILT_IN_GROUPS)


def test_derived_topics() -> None:
    assert names.retry_topic("g") == "%RETRY%g"
    assert names.dlq_topic("g") == "%DLQ%g"
    assert names.is_retry_topic("%RETRY%g")
    assert not names.is_retry_topic("%DLQ%g")
    assert names.is_dlq_topic("%DLQ%g")
    assert names.split_prefix("%DLQ%g%x") == ("%DLQ%", "g%x")
    assert names.split_prefix("x%RETRY%g") == ("", "x%RETRY%g")


def test_pop_retry_topics() -> None:
    assert names.pop_retry_topic("T_1", "g_1") == "%RETRY%g_1_T_1"
    assert names.pop_retry_topic("T_1", "g_1", v2=True) == "%RETRY%g_1+T_1"
    assert names.topic_of_pop_retry("%RETRY%g_1_T_1", "g_1") == "T_1"
    assert names.topic_of_pop_retry("%RETRY%g_1+T_1", "g_1") == "T_1"
    assert names.topic_of_pop_retry("%RETRY%g_1", "g_1") == "%RETRY%g_1"
    assert names.topic_of_pop_retry("T_1", "g_1") == "T_1"


@pytest.mark.parametrize(
    ("bare", "full"),
    [
        ("T", "NS%T"),
        ("%RETRY%G", "%RETRY%NS%G"),
        ("%DLQ%G", "%DLQ%NS%G"),
        ("NSX", "NS%NSX"),
    ],
)
def test_namespace_wraps_and_unwraps(bare: str, full: str) -> None:
    assert names.wrap_namespace("NS", bare) == full
    assert names.wrap_namespace("NS", full) == full  # idempotent
    assert names.unwrap_namespace("NS", full) == bare
    assert names.unwrap_namespace("OTHER", full) == full
    assert names.unwrap_namespace(None, full) == full


@pytest.mark.parametrize(
    "name", ["TBW102", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "CID_RMQ_SYS_TRANS", ""]
)
def test_namespace_leaves_system_names_alone(name: str) -> None:
    assert names.wrap_namespace("NS", name) == name
    assert names.unwrap_namespace("NS", name) == name


@pytest.mark.parametrize("namespace", ["", None])
def test_no_namespace(namespace: str | None) -> None:
    assert names.wrap_namespace(namespace, "T") == "T"


def test_namespace_of_an_endpoint() -> None:
    assert names.namespace_of_endpoint("http://MQ_INST_1_a.cn.example:80") == "MQ_INST_1_a"
    assert names.namespace_of_endpoint("MQ_INST_1_a.cn.example:80") == "MQ_INST_1_a"
    assert names.namespace_of_endpoint("http://MQ_INST_1.example:80") is None
    assert names.namespace_of_endpoint("127.0.0.1:9876") is None


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9876", "127.0.0.1", 9876),
        (" broker-1.example.com:0 ", "broker-1.example.com", 0),
        ("[::1]:10911", "::1", 10911),
        ("::1:10911", "::1", 10911),
        ("fe80::1%eth0:65535", "fe80::1%eth0", 65535),
        ("my_host:1", "my_host", 1),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    address = names.parse_address(text)
    assert address == Address(host, port)
    assert names.parse_address(str(address)) == address


def test_address_text() -> None:
    assert str(Address("::1", 1)) == "[::1]:1"
    assert str(Address("h", 1)) == "h:1"


@pytest.mark.parametrize(
    "text",
    [
        *("", "h", "h:", ":1", "h:65536", "h:-1", "h:1x", "h:\uff11", "a b:1", "h:1:2", "::1"),
        *(
            "[::1]",
            "[::1",
            "[::1]1",
            "[::1]:",
            "[h]:1",
            "-h:1",
            "h\n:1",
            "h/x:1",
            "u@h:1",
            "h:123456",
        ),
    ],
)
def test_bad_addresses(text: str) -> None:
    with pytest.raises(ConfigError, match="is not an address"):
        names.parse_address(text)


def test_default_port() -> None:
    assert names.parse_address("h", default_port=9876) == Address("h", 9876)
    assert names.parse_address("[::1]", default_port=9876) == Address("::1", 9876)
    with pytest.raises(ConfigError):
        names.parse_address("h:", default_port=9876)


def test_address_lists() -> None:
    two = (Address("a", 1), Address("b", 2))
    assert names.parse_addresses("a:1;b:2") == two
    assert names.parse_addresses("a:1; b:2;") == two
    assert names.parse_addresses("http://ignored/a:1;b:2") == two
    for empty in ("", ";", "http://"):
        with pytest.raises(ConfigError, match="empty"):
            names.parse_addresses(empty)
    assert len(names.parse_addresses(";".join(["a:1"] * 256))) == 256
    with pytest.raises(ConfigError, match="257 addresses exceed the limit of 256"):
        names.parse_addresses(";".join(["a:1"] * 257))


def test_url_with_everything() -> None:
    endpoint = names.parse_url("rocketmq://ak:s%2Fk%40@a:1,[::1]:2,c/my-ns?tls=1")
    assert endpoint == Endpoint(
        namesrv=(Address("a", 1), Address("::1", 2), Address("c", 9876)),
        access_key="ak",
        secret_key="s/k@",
        namespace="my-ns",
        tls=True,
    )
    assert endpoint.url() == "rocketmq://ak:s%2Fk%40@a:1,[::1]:2,c:9876/my-ns?tls=1"
    assert "s/k" not in repr(endpoint)
    assert repr(endpoint) == (
        "Endpoint('rocketmq://ak:***@a:1,[::1]:2,c:9876/my-ns?tls=1', source='argument')"
    )


def test_url_with_little() -> None:
    assert names.parse_url("rocketmq://h") == Endpoint(namesrv=(Address("h", 9876),))
    assert names.parse_url("rocketmq://h:1/?tls=false").tls is False
    assert names.parse_url("rocketmq://h:1/").namespace is None


@pytest.mark.parametrize(
    ("url", "cause"),
    [
        ("http://h:1", "not a connection URL"),
        ("rocketmq://h:1#x", "not a connection URL"),
        ("rocketmq://", "empty"),
        ("rocketmq://ak:sk@", "empty"),
        ("rocketmq://ak@h:1", "access_key:secret_key@"),
        ("rocketmq://:sk@h:1", "access_key:secret_key@"),
        ("rocketmq://ak:@h:1", "access_key:secret_key@"),
        ("rocketmq://h:1;g:2", "not an address"),
        ("rocketmq://h:1/a/b", "not a namespace"),
        ("rocketmq://h:1/a%25b", "not a namespace"),
        ("rocketmq://h:1/a.b", "not a namespace"),
        ("rocketmq://h:1?tls=maybe", "tls=maybe in the URL is not an option"),
        ("rocketmq://h:1?timeout=3", "timeout=3 in the URL is not an option"),
    ],
)
def test_bad_urls(url: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        names.parse_url(url)


@pytest.mark.parametrize(
    "url",
    [
        "rocketmq://ak:hun/ter2@h:1",
        "rocketmq://ak:hun?ter2@h:1",
        "rocketmq://ak:hun#ter2@h:1",
        "rocketmq://ak:hunter2@h:bad",
        "rocketmq://ak:hunter2@h:1/a/b",
    ],
)
def test_errors_do_not_repeat_credentials(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        names.resolve_namesrv(url, {})
    assert "hun" not in str(raised.value)
    assert "ter2" not in str(raised.value)


hosts = st.one_of(
    st.sampled_from(["localhost", "10.0.0.1", "mq-1.example.com"]),
    st.ip_addresses(v=6).map(str),
)
addresses = st.builds(Address, hosts, st.integers(0, 65535))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(addresses, min_size=1, max_size=3),
    st.none() | st.tuples(st.text(min_size=1), st.text(min_size=1)),
    st.none() | st.from_regex(r"\A[a-zA-Z0-9_|-]{1,20}\Z"),
    st.booleans(),
)
def test_url_round_trip(
    namesrv: list[Address], keys: tuple[str, str] | None, namespace: str | None, tls: bool
) -> None:
    access_key, secret_key = keys or (None, None)
    endpoint = Endpoint(
        namesrv=tuple(namesrv),
        access_key=access_key,
        secret_key=secret_key,
        namespace=namespace,
        tls=tls,
    )
    assert names.parse_url(endpoint.url()) == endpoint


def test_order_of_name_server_sources() -> None:
    environ = {
        "SKYLARK_NAMESRV": "rocketmq://s:1/ns",
        "NAMESRV_ADDR": "n:1;m:2",
        "ROCKETMQ_NAMESRV_ADDR": "r:1",
    }

    def resolved() -> tuple[str, str]:
        endpoint = names.resolve_namesrv(None, environ, default=names.LOCAL_NAMESRV)
        return endpoint.source, ";".join(map(str, endpoint.namesrv))

    argument = names.resolve_namesrv("a:1", environ)
    assert (argument.source, argument.namesrv) == ("argument", (Address("a", 1),))
    assert names.resolve_namesrv(" ", environ).namespace == "ns"
    assert resolved() == ("SKYLARK_NAMESRV", "s:1")
    environ["SKYLARK_NAMESRV"] = ""
    assert resolved() == ("NAMESRV_ADDR", "n:1;m:2")
    del environ["NAMESRV_ADDR"]
    assert resolved() == ("ROCKETMQ_NAMESRV_ADDR", "r:1")
    environ.clear()
    assert resolved() == ("default", "127.0.0.1:9876")
    hint = "pass .*, or set SKYLARK_NAMESRV or NAMESRV_ADDR"
    with pytest.raises(ConfigError, match=f"no name server is given: {hint}"):
        names.resolve_namesrv(None, environ)


def test_namespace_comes_with_an_instance_endpoint() -> None:
    endpoint = names.resolve_namesrv("http://MQ_INST_1_a.example:80", {})
    assert endpoint.namespace == "MQ_INST_1_a"
    assert endpoint.namesrv == (Address("MQ_INST_1_a.example", 80),)


def test_unreadable_source_is_named() -> None:
    with pytest.raises(ConfigError, match="name server from NAMESRV_ADDR: 'h:x' is not an address"):
        names.resolve_namesrv(None, {"NAMESRV_ADDR": "h:x"}, default=names.LOCAL_NAMESRV)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.9.10", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.0.2.7", False),
        ("mq.example.com", False),
    ],
)
def test_loopback_is_this_machine_alone(host: str, loopback: bool) -> None:
    assert names.is_loopback(host) is loopback
