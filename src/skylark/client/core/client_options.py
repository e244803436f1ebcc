"""Options of a client: its name servers, identity, timeouts and limits.

:class:`ClientOptions` never changes; producers and consumers with the same client id share
connections and routes. Name servers come from ``namesrv`` (addresses, or one connection URL), else
from the environment, see :func:`skylark.core.names.resolve_namesrv`. Credentials and a namespace
given here override those in the URL. Not supported, with an error: fetching the list of name
servers by HTTP, and (so far) TLS.

**Client id.** It identifies the members of a group: ``<address>@<instance>``, then
``@<unit>`` and ``@STREAM`` where they apply. Unless a name was given, the instance of producers and
of clustering consumers is ``<pid>#<random>``: two in one process are two members, and two processes
with the same number behind one address as well (Java uses the time in nanoseconds). Broadcasting
consumers keep ``DEFAULT``, because their offset file has this id in its path, which must be the
same after a restart. Counterpart of Java's ``ClientConfig`` and ``MQClientManager``.
"""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from skylark.auth.signature import Credentials
from skylark.client.core.argument_checks import (
    check_fields,
    field_types,
    fits,
    refused,
    shown,
    unknown_keyword,
)
from skylark.core.errors import ConfigError
from skylark.core.metrics import Registry
from skylark.core.names import NAMESRV_VARIABLES, Endpoint, resolve_namesrv

#: Seconds, or a timedelta.
Duration: TypeAlias = float | timedelta

DEFAULT_INSTANCE: Final = "DEFAULT"
TEXT_SIZE_MAX: Final = 255  # of namespaces and of the parts of a client id
# A URL with a path is the service that lists name servers, not a name server.
_HTTP_LOOKUP: Final = re.compile(r"https?://[^/]+/+[^/]", re.IGNORECASE)
_URL_SECRET: Final = re.compile(r"(://[^:/@]*:)[^@]*@")


def seconds(duration: Duration, name: str = "a duration") -> float:
    """A duration in seconds; raises ClientError with ``name`` if it is not one."""
    if isinstance(duration, timedelta):
        return duration.total_seconds()
    if not fits(duration, float):
        raise refused(name, duration, "a number of seconds or a timedelta")
    return float(duration)


def in_seconds(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings, with numbers for timedeltas."""
    return {
        name: value.total_seconds() if isinstance(value, timedelta) else value
        for name, value in settings.items()
    }


class _SuggestingMeta(msgspec.StructMeta):
    """Makes structs whose constructor names the right keyword for a misspelt one."""

    if not TYPE_CHECKING:  # type checkers know the fields, and check calls by them

        def __call__(cls, *args, **kwargs):
            known = dict(field_types(cls))
            for name in kwargs:
                if name not in known:
                    raise unknown_keyword(cls.__name__, name, known)
            return super().__call__(*args, **kwargs)


class ClientOptions(msgspec.Struct, frozen=True, kw_only=True, metaclass=_SuggestingMeta):
    """Settings that all clients share. Durations are seconds or timedeltas, and kept as seconds."""

    #: addresses, or a connection URL; else from SKYLARK_NAMESRV, NAMESRV_ADDR or
    #: ROCKETMQ_NAMESRV_ADDR
    namesrv: str | Sequence[str] | None = None
    #: access key, secret key and, if there is one, security token
    acl: tuple[str, str] | tuple[str, str, str] | None = None
    namespace: str | None = None  #: put before every topic and group on the wire
    namespace_v2: str | None = None  #: sent as a field of every request instead
    client_ip: str | None = None  #: clientIP: our address in the client id; determined unless given
    instance_name: str = DEFAULT_INSTANCE  #: instanceName: clients with one name share connections
    unit_name: str | None = None  #: unitName: part of the client id
    unit_mode: bool = False  #: unitMode: sent to brokers with heartbeats
    vip_channel: bool = False  #: use the brokers' second port, two below the first
    #: how long the start of a consumer waits for a name server; 0: not at all
    start_timeout: Duration = 30.0
    request_timeout: Duration = 3.0  #: heartbeats, routes and other small requests
    route_interval: Duration = 30.0  #: pollNameServerInterval: between two refreshes of routes
    heartbeat_interval: Duration = 30.0  #: heartbeatBrokerInterval: between two heartbeats
    offset_interval: Duration = 5.0  #: persistConsumerOffsetInterval: how often offsets are saved
    #: pullTimeDelayMillsWhenException: pause after a pull that failed
    pull_error_delay: Duration = 1.0
    heartbeat_v2: bool = False  #: useHeartbeatV2: short heartbeats where nothing has changed
    trace: bool = False  #: enableTrace: write a trace of each message to the trace topic
    trace_topic: str | None = None  #: traceTopic: RMQ_SYS_TRACE_TOPIC unless given
    trace_batch: int = 10  #: traceMsgBatchNum: sends or handler calls in one trace; 20 at most
    access_channel: str = "LOCAL"  #: CLOUD: traces go to the topics of the cloud product
    send_latency: bool = False  #: avoid brokers that were slow or failed, for a while
    start_detector: bool = False  #: probe avoided brokers
    detect_timeout: Duration = 0.2  #: detectTimeout: of such a probe
    detect_interval: Duration = 2.0  #: detectInterval: between two of them
    in_flight_max: int = 65_535  #: requests of one event loop without a response
    in_flight_bytes_max: int = 100 * 1024 * 1024  #: bytes of their bodies
    zone: str | None = None  #: name of the zone whose brokers are preferred; ROCKETMQ_ZONE
    rpc_hooks: Sequence[object] = ()  #: objects like :class:`RpcHook`, called for every request
    metrics: Registry | bool = True  #: registry of the process (True), another one, or none (False)
    #: OpenTelemetry spans: None if the application has set a tracer provider; or one to use
    telemetry: object = None
    #: network and clock of a test broker (``skylark.testing``); None: TCP and real time
    runtime: object = None

    def __post_init__(self) -> None:
        for name, value in in_seconds(msgspec.structs.asdict(self)).items():
            if value is not getattr(self, name):
                msgspec.structs.force_setattr(self, name, value)
        check_fields(self)
        for name in (
            "request_timeout",
            "route_interval",
            "heartbeat_interval",
            "offset_interval",
            "pull_error_delay",
            "detect_timeout",
            "detect_interval",
            "in_flight_max",
            "in_flight_bytes_max",
            "trace_batch",
        ):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)!r}")
        if seconds(self.start_timeout) < 0:
            raise ConfigError(f"start_timeout must be 0 or more, not {self.start_timeout!r}")
        if self.namespace and self.namespace_v2:
            raise ConfigError("namespace and namespace_v2 exclude each other")
        if self.access_channel not in ("LOCAL", "CLOUD"):
            raise ConfigError(f"access_channel is LOCAL or CLOUD, not {self.access_channel!r}")

        _check_texts(self)

    def __repr__(self) -> str:
        """The options that differ from the defaults, without secrets."""
        shown = []
        for field in msgspec.structs.fields(self):
            value = getattr(self, field.name)
            if value != field.default:
                if field.name == "acl":
                    value = (value[0], "***")
                elif isinstance(value, str):
                    value = _URL_SECRET.sub(r"\1***@", value)
                shown.append(f"{field.name}={value!r}")
        return f"ClientOptions({', '.join(shown)})"

    def endpoint(self, environ: Mapping[str, str] | None = None) -> Endpoint:
        """The name servers, credentials and namespace of these options."""
        environ = os.environ if environ is None else environ
        given = self.namesrv
        if given is not None and not isinstance(given, str):
            given = ";".join(given)
        for text in (given, *(environ.get(name) for name in NAMESRV_VARIABLES)):
            if text is not None and text.strip():
                _refuse_http_lookup(text.strip())
                break
        found = resolve_namesrv(given, environ)
        changes: dict[str, str] = {}
        if self.acl is not None:
            changes.update(access_key=self.acl[0], secret_key=self.acl[1])
        if self.namespace is not None or self.namespace_v2 is not None:
            changes["namespace"] = self.namespace or ""
        found = msgspec.structs.replace(found, **changes) if changes else found
        if found.tls:
            raise ConfigError("connections with TLS are not supported yet", hint="leave ?tls=1 out")
        return found

    def zone_entries(self, environ: Mapping[str, str] | None = None) -> dict[str, str]:
        """The request fields of the zone, from these options or the environment."""
        environ = os.environ if environ is None else environ
        zone = self.zone or environ.get("ROCKETMQ_ZONE", "").strip()
        mode = "true" if self.zone else environ.get("ROCKETMQ_ZONE_MODE", "").strip()
        found = {"__ZONE_NAME": zone, "__ZONE_MODE": mode}
        return {name: value for name, value in found.items() if value}

    def credentials(self, endpoint: Endpoint) -> Credentials | None:
        """The credentials for signatures; None: requests are not signed."""
        if endpoint.access_key is None or endpoint.secret_key is None:
            return None
        token = self.acl[2] if self.acl is not None and len(self.acl) > 2 else None
        return Credentials(
            access_key=endpoint.access_key, secret_key=endpoint.secret_key, security_token=token
        )

    def client_id(self, *, keep_default: bool = False, stream: bool = False) -> str:
        """The id of a new client; ``keep_default`` for broadcasting consumers."""
        instance = self.instance_name
        if instance == DEFAULT_INSTANCE and not keep_default:
            instance = f"{os.getpid()}#{int.from_bytes(os.urandom(7))}"
        parts = [self.client_ip or local_address(), instance]
        if self.unit_name:
            parts.append(self.unit_name)
        if stream:
            parts.append("STREAM")
        return "@".join(parts)


def given_options(options: ClientOptions | None) -> ClientOptions:
    """The options that a client was given, or those of the environment."""
    if options is None:
        return ClientOptions()
    if not isinstance(options, ClientOptions):
        raise ConfigError(
            f"options must be ClientOptions, not {shown(options)}",
            hint='ClientOptions(namesrv="127.0.0.1:9876")',
        )
    return options


def _check_texts(options: ClientOptions) -> None:
    """Raise ConfigError for texts that would make an invalid client id or name."""
    for name in ("namespace", "namespace_v2", "client_ip", "instance_name", "unit_name", "zone"):
        if len(getattr(options, name) or "") > TEXT_SIZE_MAX:
            raise ConfigError(f"{name} must have at most {TEXT_SIZE_MAX} characters")
    if not options.instance_name.strip() or options.client_ip == "":
        raise ConfigError("instance_name and client_ip must not be empty", hint="leave them out")
    if options.acl is not None and not all(options.acl):
        raise ConfigError("acl must have an access key and a secret key, not empty ones")


def _refuse_http_lookup(text: str) -> None:
    if _HTTP_LOOKUP.match(text):
        raise ConfigError(
            f"the list of name servers cannot be fetched by HTTP from {text[:200]}",
            hint="write the addresses themselves: host:port;host:port",
        )


def local_address() -> str:
    """An address of this machine that others can reach, else that of loopback.

    Asks the routing table with a datagram socket; nothing is sent.
    """
    for family, target in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                address = ipaddress.ip_address(probe.getsockname()[0].partition("%")[0])
        except OSError:
            continue
        if not address.is_unspecified and not address.is_loopback:
            return f"[{address}]" if address.version == 6 else str(address)
    return "127.0.0.1"
