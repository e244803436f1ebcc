"""What a recorded answer and ours must have in common, and the list of what they have not.

Compared are: code, remark (ours may go on where the recorded one ends), ext fields, the values of
the body, and the type of the header. Only what each run draws or measures anew is left out:
:func:`_ext_values` for the header, :mod:`tests.golden.replay.body_values` for the body. Addresses
of clients are taken for equal.

**DIFFERENCES** is the whole list of what is not the same, each entry with its reason. A test fails
when an entry is not needed any more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from skylark.wire.properties import parse_properties
from tests.golden.replay.body_values import OUR_SETTINGS, body_values, is_records
from tests.golden.replay.player import Exchange
from tests.golden.replay.recording import RUNS

JAVA_EXCEPTION: Final = "java."
_CLIENT: Final = re.compile(r"127\.0\.0\.1:\d+")


class Facts(msgspec.Struct, kw_only=True):
    """An answer as far as it counts."""

    code: int
    remark: str
    ext: dict[str, str]
    body: Any
    serialize_type: int

    @classmethod
    def of(cls, request: Command, answer: Command) -> Facts:
        return cls(
            code=answer.code,
            remark=_CLIENT.sub("CLIENT", answer.remark or ""),
            ext=answer.ext or {},
            body=body_values(request.code, answer.body),
            serialize_type=answer.serialize_type,
        )


class Difference(msgspec.Struct, kw_only=True, frozen=True):
    """Where our answer is another one, and why."""

    reason: str
    scenario: str
    codes: frozenset[int]
    #: The requests of these codes that are meant have these ext fields, and a body or none.
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    in_body: bytes = b""
    without_body: bool = False
    #: From the recorded facts to those that we want.
    ours: Callable[[Command, Facts], Facts]

    def applies_to(self, exchange: Exchange) -> bool:
        request = exchange.request
        return (
            exchange.scenario == self.scenario
            and request.code in self.codes
            and self.ext.items() <= (request.ext or {}).items()
            and self.in_body in (request.body or b"")
            and not (self.without_body and request.body)
        )


class AskedDifference(msgspec.Struct, kw_only=True, frozen=True):
    """Where we ask something else of a client, or nothing, and why."""

    reason: str
    code: int
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    #: Ext fields, values of records and properties that are not compared; None: ours asks nothing.
    hidden: frozenset[str] | None = None

    def applies_to(self, asked: Command) -> bool:
        return asked.code == self.code and self.ext.items() <= (asked.ext or {}).items()


def _illegal(request: Command, recorded: Facts) -> Facts:
    return msgspec.structs.replace(
        recorded,
        code=ResponseCode.MESSAGE_ILLEGAL,
        remark="the message is illegal, maybe msg body or properties length not matched.",
        ext={"TRACE_ON": "true", "MSG_REGION": "DefaultRegion"},
    )


def _no_subscription(request: Command, recorded: Facts) -> Facts:
    return msgspec.structs.replace(
        recorded,
        code=ResponseCode.SUBSCRIPTION_PARSE_FAILED,
        remark="parse the consumer's subscription failed",
        ext={},
        body=None,
    )


def _our_settings(request: Command, recorded: Facts) -> Facts:
    settings = {**recorded.body, **dict.fromkeys(OUR_SETTINGS, "")}
    return msgspec.structs.replace(recorded, body=settings)


def _made_up(request: Command, recorded: Facts) -> Facts:
    sent = RUNS[1].unrecorded["query"][0].command.ext or {}
    (record,) = recorded.body
    properties = {**record["properties"], "UNIQ_KEY": parse_properties(sent["i"])["UNIQ_KEY"]}
    born = (int(sent["g"]), record["born"][1])
    return msgspec.structs.replace(
        recorded, body=[{**record, "born": born, "properties": properties}]
    )


DIFFERENCES: Final[tuple[Difference | AskedDifference, ...]] = (
    Difference(
        reason="the send of this message was not recorded: the replay sends that of another",
        scenario="admin-queryMsgById",
        codes=frozenset({RequestCode.VIEW_MESSAGE_BY_ID}),
        ours=_made_up,
    ),
    Difference(
        reason="a message without a body is illegal (13); Java fails on it (1)",
        scenario="errors",
        codes=frozenset({RequestCode.SEND_MESSAGE_V2}),
        ext={"b": "FrameA", "e": "0", "i": ""},
        without_body=True,
        ours=_illegal,
    ),
    Difference(
        reason="a pull with SQL that does not compile is refused; Java delivers unfiltered",
        scenario="errors",
        codes=frozenset({RequestCode.PULL_MESSAGE}),
        ext={"expressionType": "SQL92", "subscription": "a >"},
        ours=_no_subscription,
    ),
    Difference(
        reason="settings of our own limits; none for the directory of a Java installation",
        scenario="admin-getBrokerConfig",
        codes=frozenset({RequestCode.GET_BROKER_CONFIG}),
        ours=_our_settings,
    ),
    AskedDifference(
        reason="ours knows that this half was committed; Java checks after 2 s, and writes down"
        " what was decided only every 3 s",
        code=RequestCode.CHECK_TRANSACTION_STATE,
        ext={"msgId": "FD0000000000000000000000000000021D7C4E0E2F2A48AF95FE0000"},
    ),
    AskedDifference(
        reason="Java has put the half of the entry above back once more, so the others stand one"
        " further; our copies name the place of the first",
        code=RequestCode.CHECK_TRANSACTION_STATE,
        hidden=frozenset({"tranStateTableOffset", "queue", "size", "TRAN_PREPARED_QUEUE_OFFSET"}),
    ),
    AskedDifference(
        reason="credentials of an administrator are not passed on to clients",
        code=RequestCode.GET_CONSUMER_RUNNING_INFO,
        hidden=frozenset({"AccessKey", "Signature"}),
    ),
)
ANSWERS: Final = [each for each in DIFFERENCES if isinstance(each, Difference)]
ASKED: Final = [each for each in DIFFERENCES if isinstance(each, AskedDifference)]


def difference(exchange: Exchange) -> Difference | None:
    """The entry of the list that is about this exchange."""
    return next((each for each in ANSWERS if each.applies_to(exchange)), None)


#: Ext fields of what brokers ask of clients that are of the run: places in the log, times, ports.
ASKED_OF_THE_RUN: Final = {"commitLogOffset", "offsetMsgId", "storeTimestamp", "bornHost"}


def asked_facts(command: Command) -> dict[str, Any] | None:
    """What counts of a request or notice that a broker sent; None if ours sends none."""
    known = next((each for each in ASKED if each.applies_to(command)), None)
    hidden = frozenset() if known is None else known.hidden
    if hidden is None:
        return None
    ext: dict[str, Any] = {
        name: "" if name in ASKED_OF_THE_RUN else value
        for name, value in (command.ext or {}).items()
        if name not in hidden
    }
    if "properties" in ext:
        ext["properties"] = {**parse_properties(ext["properties"]), "PUSH_REPLY_TIME": ""}
    body = body_values(command.code, command.body)
    for record in body if is_records(command.body) else ():
        for values in (record, record["properties"]):
            for name in hidden & values.keys():
                del values[name]
    head = command.code, command.flag, command.version, command.language
    return {"head": head, "ext": ext, "body": body}


def problems(exchange: Exchange, known: Difference | None) -> list[str]:
    """How our answer is not what it must be; ``known``: the entry of the list about it."""
    request, recorded, ours = exchange.request, exchange.recorded, exchange.ours
    if recorded is None:
        return []
    if ours is None:
        return ["not answered"]
    wanted, got = Facts.of(request, recorded), Facts.of(request, ours)
    if known is not None:
        wanted = known.ours(request, wanted)
    found = [
        f"{name}: {ours_is!r}, not {recorded_is!r}"
        for name, ours_is, recorded_is in (
            ("code", got.code, wanted.code),
            ("serialize type", got.serialize_type, wanted.serialize_type),
            ("ext", _ext_values(got.ext, exchange), _ext_values(wanted.ext, exchange)),
            ("body", got.body, wanted.body),
        )
        if ours_is != recorded_is
    ]
    if wanted.remark.startswith(JAVA_EXCEPTION):
        if not got.remark or "Error:" in got.remark:
            found.append(f"remark {got.remark!r} is no plain text")
    elif not got.remark.startswith(wanted.remark):
        found.append(f"remark {got.remark!r} does not start with {wanted.remark!r}")
    return found


def _ext_values(ext: dict[str, str], exchange: Exchange) -> dict[str, Any]:
    """Without the values of the run: places in the log, times, ids that the broker has drawn.

    The first sends have the same places: each record has its length.
    """
    found: dict[str, Any] = dict(ext)
    for name in ("indexLastUpdatePhyoffset", "indexLastUpdateTimestamp", "popTime", "reviveQid"):
        if name in found:
            found[name] = ""
    for name in ("startOffsetInfo", "msgOffsetInfo"):  # a pop begins at a random queue
        if name in found:
            found[name] = sorted(found[name].split(";"))
    if "version" in found:
        found["version"] = {**json.loads(found["version"]), "timestamp": 0}
    if "msgId" in found and not exchange.scenario.startswith("send-"):
        found["msgId"] = found["msgId"][:-16]
    if "transactionId" in found and "UNIQ_KEY" not in (exchange.request.ext or {}).get("i", ""):
        found["transactionId"] = ""
    return found
