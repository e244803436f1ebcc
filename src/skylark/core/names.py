"""Names and addresses: topics, groups, namespaces, ``host:port`` lists and the connection URL.

**Topics and groups** are made of ``% | a-z A-Z 0-9 _ -``; a topic has at most 127 characters, a
retry or dead-letter topic 255, a group 120. ``*_problem`` functions give the sentence that Java
puts into the remark (code 29, or 16 for a forbidden send), or None; ``check_*`` raise it.

**Derived topics** of group G: ``%RETRY%G``, ``%DLQ%G``, and for POP ``%RETRY%G_T``, or in its
second form ``%RETRY%G+T``, which only brokers create: ``+`` is not allowed in given names.

**Namespace v1** is a renaming by the client: ``NS%T``, ``%RETRY%NS%G``, ``%DLQ%NS%G``. System names
stay bare. Servers see nothing but the full name.

**Name servers** come as ``host:port;host:port`` or as a URL, from the first source that has any
(:func:`resolve_namesrv`)::

    rocketmq://[access_key:secret_key@]host:port[,host:port][/namespace][?tls=1]

Counterpart of Java's TopicValidator, NamespaceUtil, KeyBuilder, MixAll and NameServerAddressUtils.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from skylark.core.errors import ConfigError, SkylarkError

TOPIC_LENGTH_MAX: Final = 127
RETRY_OR_DLQ_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
LMQ_PREFIX: Final = "%LMQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
SYNC_BROKER_MEMBER_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"
REVIVE_LOG_PREFIX: Final = "rmq_sys_REVIVE_LOG_"

AUTO_CREATE_TOPIC: Final = "TBW102"
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
#: 5.5.0 makes these at start, and uses them only with transactions in RocksDB.
ROCKSDB_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"
ROCKSDB_OP_HALF_TOPIC: Final = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"

SEND_FORBIDDEN_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)
SYSTEM_TOPICS: Final = SEND_FORBIDDEN_TOPICS | {
    AUTO_CREATE_TOPIC,
    BENCHMARK_TOPIC,
    TRACE_TOPIC,
    CHECKPOINT_TOPIC,
}

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"  # its offsets: how far POP check-points are done
TOOLS_GROUP: Final = "TOOLS_CONSUMER"
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
SPARK_PRODUCER_GROUP: Final = "SPARK_TXN"  # exactly-once sinks of Spark, and their resolver
#: Producer groups that no application has chosen: other features join them.
INTERNAL_PRODUCER_GROUPS: Final = frozenset({INNER_PRODUCER_GROUP, SPARK_PRODUCER_GROUP})
BUILT_IN_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)

NAMESRV_PORT: Final = 9876
LOCAL_NAMESRV: Final = f"127.0.0.1:{NAMESRV_PORT}"  # what the command line falls back to
#: The variables that name servers come from, in this order.
NAMESRV_VARIABLES: Final = ("SKYLARK_NAMESRV", "NAMESRV_ADDR", "ROCKETMQ_NAMESRV_ADDR")
NAMESRV_VARIABLE_DOCUMENTED: Final = NAMESRV_VARIABLES[1]  # Java's; documents and hints name it
ADDRESS_COUNT_MAX: Final = 256
_URL_SCHEME: Final = "rocketmq://"

_VALID_NAME: Final = re.compile(r"[%|a-zA-Z0-9_-]*")
_VALID_TEXT: Final = "allowing only ^[%|a-zA-Z0-9_-]+$"
_HOST_NAME: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,252}[A-Za-z0-9_.])?")
_PORT: Final = re.compile(r"[0-9]{1,5}")
# \w is ASCII in Java, and the endpoint may stand after any scheme.
_INSTANCE_ENDPOINT: Final = re.compile(r"(?:\w+://)?(MQ_INST_\w+_\w+)\..*", re.ASCII | re.DOTALL)


class IllegalNameError(SkylarkError):
    """A topic or group name that RocketMQ does not allow; ``str()`` is Java's own remark."""


# --- topics and groups ----------------------------------------------------------------------------


def topic_problem(topic: str) -> str | None:
    """Why this cannot be the name of a topic, in Java's words, or None."""
    if not topic.strip():
        return "The specified topic is blank."
    if not _VALID_NAME.fullmatch(topic):
        return f"The specified topic: {topic}, contains illegal characters, {_VALID_TEXT}"
    if is_retry_topic(topic) or is_dlq_topic(topic):
        if len(topic) > RETRY_OR_DLQ_TOPIC_LENGTH_MAX:
            return (
                f"The specified topic is DLQ or Retry topic: {topic}, and it's longer than "
                f"topic max length: {RETRY_OR_DLQ_TOPIC_LENGTH_MAX}"
            )
    elif len(topic) > TOPIC_LENGTH_MAX:
        return f"The specified topic: {topic}, is longer than topic max length: {TOPIC_LENGTH_MAX}"
    return None


def group_problem(group: str) -> str | None:
    """Why this cannot be the name of a group, in Java's words, or None."""
    if not group.strip():
        return "The specified group is blank."
    if not _VALID_NAME.fullmatch(group):
        return f"The specified group: {group}, contains illegal characters, {_VALID_TEXT}"
    if len(group) > GROUP_LENGTH_MAX:
        return f"The specified group: {group}, is longer than group max length: {GROUP_LENGTH_MAX}"
    return None


def send_problem(topic: str) -> str | None:
    """Why producers may not send to this topic, or None."""
    if topic in SEND_FORBIDDEN_TOPICS:
        return f"Sending message to topic[{topic}] is forbidden."
    return None


def system_topic_problem(topic: str, extra: Collection[str] = ()) -> str | None:
    """Why an operator may not create or delete this topic, or None."""
    if is_system_topic(topic, extra):
        return f"The topic[{topic}] is conflict with system topic."
    return None


def check_topic(topic: str) -> None:
    """Raise IllegalNameError unless this can be the name of a topic."""
    if (problem := topic_problem(topic)) is not None:
        raise IllegalNameError(problem)


def check_group(group: str) -> None:
    """Raise IllegalNameError unless this can be the name of a group."""
    if (problem := group_problem(group)) is not None:
        raise IllegalNameError(problem)


def is_system_topic(topic: str, extra: Collection[str] = ()) -> bool:
    """Whether the topic belongs to RocketMQ; ``extra`` are those of one broker."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX) or topic in extra


def broker_system_topics(cluster: str, broker: str) -> frozenset[str]:
    """The topics that one broker adds to the system topics at start."""
    return frozenset(
        {
            cluster,
            broker,
            reply_topic(cluster),
            revive_topic(cluster),
            sync_broker_member_topic(broker),
        }
    )


def is_system_group(group: str) -> bool:
    return group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    return topic.startswith(RETRY_PREFIX)


def is_dlq_topic(topic: str) -> bool:
    return topic.startswith(DLQ_PREFIX)


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    return f"{cluster}_REPLY_TOPIC"


def revive_topic(cluster: str) -> str:
    return REVIVE_LOG_PREFIX + cluster


def sync_broker_member_topic(broker: str) -> str:
    return SYNC_BROKER_MEMBER_PREFIX + broker


def pop_retry_topic(topic: str, group: str, *, v2: bool = False) -> str:
    """The topic that holds messages of ``topic`` which POP consumers of ``group`` did not ack."""
    return f"{RETRY_PREFIX}{group}{'+' if v2 else '_'}{topic}"


def topic_of_pop_retry(retry: str, group: str) -> str:
    """The topic behind a POP retry topic of this group, either form; others come back as given."""
    for separator in ("+", "_"):
        prefix = f"{RETRY_PREFIX}{group}{separator}"
        if retry.startswith(prefix):
            return retry[len(prefix) :]
    return retry


def split_prefix(name: str) -> tuple[str, str]:
    """The retry or dead-letter prefix of a name (or ``""``), and the rest."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            return prefix, name[len(prefix) :]
    return "", name


# --- namespace v1 ---------------------------------------------------------------------------------


def wrap_namespace(namespace: str | None, name: str) -> str:
    """The name as servers see it; system names and names already in the namespace stay."""
    if not namespace or not name or _is_system_name(name):
        return name
    prefix, rest = split_prefix(name)
    if rest.startswith(f"{namespace}%"):
        return name
    return f"{prefix}{namespace}%{rest}"


def unwrap_namespace(namespace: str | None, name: str) -> str:
    """The name as users of the namespace see it; names of other namespaces stay whole."""
    if not namespace or not name or _is_system_name(name):
        return name
    prefix, rest = split_prefix(name)
    return prefix + rest.removeprefix(f"{namespace}%")


def namespace_of_endpoint(endpoint: str) -> str | None:
    """``MQ_INST_x_y`` for an endpoint such as ``http://MQ_INST_x_y.host:80``, else None."""
    match = _INSTANCE_ENDPOINT.fullmatch(endpoint)
    return match[1] if match else None


def _is_system_name(name: str) -> bool:
    return is_system_topic(name) or is_system_group(name)


# --- addresses ------------------------------------------------------------------------------------


class Address(NamedTuple):
    """Host and port; ``str()`` is the wire form, with brackets around an IPv6 host."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, default_port: int | None = None) -> Address:
    """Read ``host:port``; IPv6 as ``[::1]:9876`` or, as Java splits it, ``::1:9876``."""
    text = text.strip()
    if text.startswith("["):
        host, bracket, tail = text[1:].partition("]")
        separator, port_text = tail[:1], tail[1:]
        sound = bool(bracket) and separator in ("", ":") and _is_ipv6(host)
    else:
        host, separator, port_text = text.rpartition(":")
        if not separator:
            host, port_text = text, ""
        sound = _is_ipv6(host) if ":" in host else _HOST_NAME.fullmatch(host) is not None
    if not separator and default_port is not None:
        port_text = str(default_port)
    if not sound or not _PORT.fullmatch(port_text) or int(port_text) > 65535:
        raise ConfigError(f"{text!r} is not an address", hint="write host:port or [ipv6]:port")
    return Address(host, int(port_text))


def parse_addresses(
    text: str, *, separator: str = ";", default_port: int | None = None
) -> tuple[Address, ...]:
    """Read ``host:port;host:port``; of an ``http://`` endpoint only what follows the last slash."""
    if text.startswith("http://"):
        text = text.rpartition("/")[2]
    parts = [part for part in text.split(separator) if part.strip()]
    if not parts:
        raise ConfigError("the list of addresses is empty")
    if len(parts) > ADDRESS_COUNT_MAX:
        raise ConfigError(f"{len(parts)} addresses exceed the limit of {ADDRESS_COUNT_MAX}")
    return tuple(parse_address(part, default_port=default_port) for part in parts)


def is_loopback(host: str) -> bool:
    """Whether an address or host name stands for this machine alone."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def reachable_host(bind_address: str, local_address: str | None) -> str | None:
    """The host at which others reach a server that binds to this address.

    ``local_address``: that of this machine, for servers that bind to all addresses.
    """
    if bind_address == "localhost":
        return "127.0.0.1"  # the host of a message id is an address
    try:
        is_wildcard = ipaddress.ip_address(bind_address).is_unspecified
    except ValueError:
        return bind_address
    return local_address if is_wildcard else bind_address


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


# --- where the name servers are -------------------------------------------------------------------


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Name servers and how to talk to them; ``source`` says where this was found."""

    namesrv: tuple[Address, ...]
    access_key: str | None = None
    secret_key: str | None = None
    namespace: str | None = None
    tls: bool = False
    source: str = "argument"

    def __repr__(self) -> str:
        return f"Endpoint({self.url(mask_secret=True)!r}, source={self.source!r})"

    def url(self, *, mask_secret: bool = False) -> str:
        """The connection URL; :func:`parse_url` reads it back."""
        credentials = ""
        if self.access_key is not None and self.secret_key is not None:
            secret = "***" if mask_secret else quote(self.secret_key, safe="")
            credentials = f"{quote(self.access_key, safe='')}:{secret}@"
        hosts = ",".join(map(str, self.namesrv))
        path = f"/{quote(self.namespace, safe='')}" if self.namespace else ""
        return f"{_URL_SCHEME}{credentials}{hosts}{path}{'?tls=1' if self.tls else ''}"


def parse_url(url: str, *, source: str = "argument") -> Endpoint:
    """Read a connection URL; errors never repeat the credentials."""
    rest, has_query, query = url.removeprefix(_URL_SCHEME).partition("?")
    if not url.startswith(_URL_SCHEME) or "#" in url:
        raise ConfigError("not a connection URL", hint=f"write {_URL_SCHEME}host:port")
    authority, _, path = rest.partition("/")
    if "@" in path or "@" in query:
        raise ConfigError("special characters in the URL's credentials must be percent-encoded")
    credentials, at, hosts = authority.rpartition("@")
    access_key, colon, secret_key = credentials.partition(":")
    if at and not (access_key and colon and secret_key):
        raise ConfigError("credentials in a URL are access_key:secret_key@")
    if "/" in path:
        raise ConfigError(f"{path!r} in the URL is not a namespace")
    namespace = unquote(path) or None
    if namespace is not None and ("%" in namespace or not _VALID_NAME.fullmatch(namespace)):
        raise ConfigError(f"{namespace!r} in the URL is not a namespace")
    return Endpoint(
        namesrv=parse_addresses(hosts, separator=",", default_port=NAMESRV_PORT),
        access_key=unquote(access_key) if at else None,
        secret_key=unquote(secret_key) if at else None,
        namespace=namespace,
        tls=_tls_option(query) if has_query else False,
        source=source,
    )


def parse_endpoint(text: str, *, source: str = "argument") -> Endpoint:
    """Read a connection URL or a plain list ``host:port;host:port``."""
    text = text.strip()
    if text.startswith(_URL_SCHEME):
        return parse_url(text, source=source)
    return Endpoint(
        namesrv=parse_addresses(text, default_port=NAMESRV_PORT),
        namespace=namespace_of_endpoint(text),
        source=source,
    )


def resolve_namesrv(
    argument: str | None, environ: Mapping[str, str], *, default: str | None = None
) -> Endpoint:
    """The name servers from the first source that has any.

    In order: the argument, ``SKYLARK_NAMESRV``, ``NAMESRV_ADDR``, ``ROCKETMQ_NAMESRV_ADDR``, the
    default (the command line passes :data:`LOCAL_NAMESRV`). Blank values count as absent; a value
    that cannot be read is an error that names its source.
    """
    sources = [("argument", argument)]
    sources += [(name, environ.get(name)) for name in NAMESRV_VARIABLES]
    sources.append(("default", default))
    for source, text in sources:
        if text is not None and text.strip():
            try:
                return parse_endpoint(text, source=source)
            except ConfigError as error:
                raise ConfigError(f"name server from {source}: {error}") from error
    raise ConfigError(
        "no name server is given",
        hint=f'pass ClientOptions(namesrv="{LOCAL_NAMESRV}"), or set {NAMESRV_VARIABLES[0]} or'
        f" {NAMESRV_VARIABLE_DOCUMENTED}",
    )


def _tls_option(query: str) -> bool:
    tls = False
    for key, value in parse_qsl(query, keep_blank_values=True):
        if key != "tls" or value.lower() not in ("0", "1", "true", "false"):
            raise ConfigError(f"{key}={value} in the URL is not an option", hint="known: tls=1")
        tls = value.lower() in ("1", "true")
    return tls
