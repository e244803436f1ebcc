"""Options of source and sink: tables that parse and check them, and the options that both share.

Spark passes the options of a source as text, with keys in lower case. A table of :class:`Option`
describes them; :func:`read_options` returns their values. An unknown option is an error that names
the nearest known one, the error for a wrong value says what would be right, and two names of one
option must not have different values. Keys that Spark itself adds are ignored.

Source and sink share :data:`CONNECTION_OPTIONS`: name servers and credentials. Readers and writers
pickle a :class:`Connection` to the tasks, so it is small and plain, and keeps its name and fields.
The driver takes the name servers from the option or from *its* environment: executors need not have
the variable.

Neither an error nor a ``repr`` contains the value of a secret.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from skylark.core.errors import ConfigError
from skylark.core.names import NAMESRV_VARIABLE_DOCUMENTED, NAMESRV_VARIABLES

T = TypeVar("T")

#: Keys that Spark adds for paths, queries and SQL tables.
SPARK_KEYS: Final = frozenset({"path", "checkpointlocation", "queryname", "provider", "owner"})
SPARK_PREFIX: Final = "option."
#: Default of ``outageTimeout``, of source and sink; see :mod:`skylark.spark.outages`.
OUTAGE_TIMEOUT_MS: Final = 5 * 60_000

_DURATION: Final = re.compile(r"(\d{1,12})\s*([a-z]*)", re.IGNORECASE)
_DURATION_UNITS: Final = {
    "": 1,
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 1),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600_000),
    **dict.fromkeys(("d", "day", "days"), 86_400_000),
}
_SIZE: Final = re.compile(r"(\d{1,15})\s*(?:([kmg])(?:i?b)?|b)?", re.IGNORECASE)
_SIZE_UNITS: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


class Option(msgspec.Struct, frozen=True):
    """One option; ``parse`` raises ValueError with a text that says what would be right."""

    name: str
    parse: Callable[[str], Any]
    aliases: tuple[str, ...] = ()
    secret: bool = False
    #: The field of the Struct of options that gets the value; None: it needs more than that.
    field: str | None = None


def read_options(given: Mapping[str, str], table: Iterable[Option]) -> dict[str, Any]:
    """The parsed values of the given options, by name; raises ConfigError."""
    by_key = {key.lower(): option for option in table for key in (option.name, *option.aliases)}
    found: dict[str, tuple[str, str]] = {}  # name -> the key that was used, its text
    values: dict[str, Any] = {}
    for key, text in given.items():
        key = key.lower()
        if key in SPARK_KEYS or key.startswith(SPARK_PREFIX):
            continue
        option = by_key.get(key)
        if option is None:
            raise _unknown(key, table)
        other_key, other_text = found.setdefault(option.name, (key, text))
        if other_text != text:
            raise ConfigError(
                f"options {other_key} and {key} mean the same and differ", hint="leave one out"
            )
        values[option.name] = _value(option, key, text)
    return values


def option_fields(values: Mapping[str, Any], table: Iterable[Option]) -> dict[str, Any]:
    """The parsed values by the field that each option names."""
    return {
        option.field: values[option.name]
        for option in table
        if option.field is not None and option.name in values
    }


def _value(option: Option, key: str, text: str) -> Any:
    shown = "***" if option.secret else repr(text[:200])
    try:
        return option.parse(text.strip())
    except ValueError as error:
        name = option.name if key == option.name.lower() else key
        raise ConfigError(f"option {name}={shown} is not valid", hint=str(error)) from None


def _unknown(key: str, table: Iterable[Option]) -> ConfigError:
    names = {each.lower(): each for option in table for each in (option.name, *option.aliases)}
    near = difflib.get_close_matches(key, names, n=2, cutoff=0.6)
    meant = " or ".join(names[each] for each in near)
    return ConfigError(
        f"option {key} is unknown",
        hint=f"did you mean {meant}?" if near else f"known are {', '.join(names.values())}",
    )


# ---- values --------------------------------------------------------------------------------------


def boolean(text: str) -> bool:
    """``true`` or ``false``."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def text_of(what: str) -> Callable[[str], str]:
    """A parser for text that is not empty."""

    def parse(text: str) -> str:
        if not text:
            raise ValueError(f"it must be {what}")
        return text

    return parse


def valid_name(problem_of: Callable[[str], str | None]) -> Callable[[str], str]:
    """A parser for names with which ``problem_of`` finds no problem."""

    def parse(text: str) -> str:
        if problem := problem_of(text):
            raise ValueError(problem)
        return text

    return parse


def one_of(*names: str) -> Callable[[str], str]:
    """A parser for one of these names, in upper or lower case."""

    def parse(text: str) -> str:
        if text.lower() not in names:
            raise ValueError(f"it must be {' or '.join(names)}")
        return text.lower()

    return parse


def whole(least: int, most: int = (1 << 63) - 1) -> Callable[[str], int]:
    """A parser for a whole number within bounds."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"-?\d{1,19}", text) or not least <= int(text) <= most:
            raise ValueError(f"it must be a whole number from {least} to {most}")
        return int(text)

    return parse


def names(text: str) -> tuple[str, ...]:
    """Parse a list with commas, each name once."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts) or len(set(parts)) != len(parts):
        raise ValueError("it must be names with commas between them, each once")
    return parts


def duration_ms(text: str) -> int:
    """``500``, ``500ms``, ``30s``, ``15m``, ``15 minutes``, ``2h``, ``1d``, in milliseconds."""
    found = _DURATION.fullmatch(text)
    if found is None or found[2].lower() not in _DURATION_UNITS:
        raise ValueError("it must be a duration such as 500ms, 30s, 15m, 2h or 1d")
    return int(found[1]) * _DURATION_UNITS[found[2].lower()]


def byte_count(text: str) -> int:
    """``65536``, ``64k``, ``4m``, ``1g``."""
    found = _SIZE.fullmatch(text)
    if found is None or not int(found[1]):
        raise ValueError("it must be a size such as 65536, 64k, 4m or 1g")
    return int(found[1]) * _SIZE_UNITS[(found[2] or "").lower()]


def moment_ms(text: str) -> int:
    """Milliseconds since 1970, or ISO-8601 (UTC unless it says otherwise)."""
    if re.fullmatch(r"\d{1,15}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            "it must be milliseconds since 1970 or a time such as 2026-11-01T12:00:00Z"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    micros = round(moment.timestamp() * 1_000_000)
    return -(-micros // 1000)  # rounded up: messages of the millisecond before are older


# ---- connection ---------------------------------------------------------------------------------


def _no_tls(text: str) -> bool:
    if text.lower() in ("", "false"):
        return False
    raise ValueError("connections with TLS are not supported yet; leave it out")


CONNECTION_OPTIONS: Final = (
    Option(
        "nameServer",
        text_of("host:port;host:port"),
        ("nameServers", "namesrvAddr", "kafka.bootstrap.servers", "bootstrap.servers"),
    ),
    Option("accessKey", text_of("an access key"), secret=True),
    Option("secretKey", text_of("a secret key"), secret=True),
    Option("securityToken", text_of("a token"), secret=True),
    Option("tls.enable", _no_tls, ("tls.enabled",)),
)


class Connection(msgspec.Struct, frozen=True, kw_only=True):
    """Name servers and credentials of a cluster."""

    name_server: str
    access_key: str | None = None
    secret_key: str | None = None
    security_token: str | None = None

    def __repr__(self) -> str:
        signed = "" if self.access_key is None else ", signed"
        return f"Connection({self.name_server.rpartition('@')[2]}{signed})"


def make_connection(
    values: Mapping[str, Any], environ: Mapping[str, str] | None = None
) -> Connection:
    """A connection from the given :data:`CONNECTION_OPTIONS`; raises ConfigError."""
    environ = os.environ if environ is None else environ
    found = values.get("nameServer")
    for name in NAMESRV_VARIABLES:
        found = found or environ.get(name, "").strip()
    if not found:
        raise ConfigError(
            "no name server is given",
            hint='give its address, .option("nameServer", "host:9876"), or set'
            f" {NAMESRV_VARIABLE_DOCUMENTED} for the driver",
        )
    access_key, secret_key = values.get("accessKey"), values.get("secretKey")
    if (access_key is None) != (secret_key is None):
        raise ConfigError("accessKey and secretKey belong together", hint="give both or none")
    return Connection(
        name_server=found if "://" in found else found.replace(",", ";"),
        access_key=access_key,
        secret_key=secret_key,
        security_token=values.get("securityToken"),
    )
