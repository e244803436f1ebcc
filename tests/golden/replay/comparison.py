"""What a recorded answer and ours must have in common, and the list of what they have not.

Compared are: code, remark (ours may go on where the recorded one ends), ext fields, the shape of
the body, and the type of the header. Ext fields have the recorded values, except for those that
each run draws or counts anew (``OWN_VALUES``). Addresses of clients are taken for equal.

**DIFFERENCES** is the whole list of what is not the same, each entry with its reason. A test fails
when an entry is not needed any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import msgspec

from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.command import Command
from tests.golden.replay.player import Exchange
from tests.golden.replay.shapes import body_shape

#: Ids with a place in the log, times, and how often something has changed.
OWN_VALUES: Final = {
    "msgId", "transactionId", "recallHandle", "version", "indexLastUpdatePhyoffset",
    "indexLastUpdateTimestamp",
}  # fmt: skip
SET_MESSAGE_REQUEST_MODE: Final = RequestCode.SET_MESSAGE_REQUEST_MODE
POP_CODES: Final = frozenset(
    {
        RequestCode.POP_MESSAGE,
        RequestCode.ACK_MESSAGE,
        RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
        SET_MESSAGE_REQUEST_MODE,
    }
)
#: Limits that Java does not have or does not let one set, files kept open, and two settings that
#: Java reads from elsewhere.
OUR_SETTINGS: Final = {
    "authenticationEnabled", "authorizationEnabled", "busyPollMicros", "commitLogAllocateAhead",
    "commitLogOpenFilesMax", "connectionCountMax", "consumeQueueOpenFilesMax",
    "consumeQueueRecentSize", "consumeQueueTailSizeMax", "diskUsedBytesMax", "groupCountMax",
    "haCompatible4x", "haSlaveFallbehindMax", "haSyncFromStart", "haTruncateAhead",
    "heldPullCountMax", "heldSizeMax", "indexOpenFilesMax", "migrateAuthFromV1Enabled",
    "pullMaxBytes", "requestCountMax", "rocketmq.serialize.type", "slaveSyncInterval",
    "topicCountMax", "transactionEndIdempotent", "writeBufferSizeMax",
}  # fmt: skip
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
            body=body_shape(request.code, answer.body),
            serialize_type=answer.serialize_type,
        )


class Difference(msgspec.Struct, kw_only=True, frozen=True):
    """Where our answer is another one, and why."""

    reason: str
    scenario: str
    codes: frozenset[int]
    #: The requests of these codes that are meant have these ext fields, and a body or none.
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    without_body: bool = False
    #: From the recorded facts to those that we want.
    ours: Callable[[Command, Facts], Facts]

    def applies_to(self, exchange: Exchange) -> bool:
        request = exchange.request
        return (
            exchange.scenario == self.scenario
            and request.code in self.codes
            and self.ext.items() <= (request.ext or {}).items()
            and not (self.without_body and request.body)
        )


class AskedDifference(msgspec.Struct, kw_only=True, frozen=True):
    """Where we ask something else of a client, or nothing, and why."""

    reason: str
    code: int
    ext: dict[str, str] = msgspec.field(default_factory=dict)
    #: Ext fields that ours has not; None: it is not asked at all.
    without: frozenset[str] | None = None

    def applies_to(self, asked: Command) -> bool:
        return asked.code == self.code and self.ext.items() <= (asked.ext or {}).items()


def _refused(request: Command, recorded: Facts) -> Facts:
    what = (
        "mode POP" if request.code == SET_MESSAGE_REQUEST_MODE else f"request type {request.code}"
    )
    return Facts(
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f" {what} not supported",
        ext={},
        body=None,
        serialize_type=recorded.serialize_type,
    )


def _no_group(request: Command, recorded: Facts) -> Facts:
    return msgspec.structs.replace(recorded, body={"groupList": []})


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
    return msgspec.structs.replace(
        recorded, body=sorted({*recorded.body, *OUR_SETTINGS} - {"rocketmqHome"})
    )


DIFFERENCES: Final[tuple[Difference | AskedDifference, ...]] = (
    *(
        Difference(
            reason="POP consumption is not there yet and is refused by name",
            scenario=scenario,
            codes=POP_CODES,
            ours=_refused,
        )
        for scenario in ("pop-consumer", "errors")
    ),
    *(
        Difference(
            reason="no group consumed this topic, because none can by POP",
            scenario="admin-topicList-c",
            codes=frozenset({RequestCode.QUERY_TOPIC_CONSUME_BY_WHO}),
            ext={"topic": topic},
            ours=_no_group,
        )
        for topic in ("FramePop", "rmq_sys_REVIVE_LOG_DefaultCluster")
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
        reason="credentials of an administrator are not passed on to clients",
        code=RequestCode.GET_CONSUMER_RUNNING_INFO,
        without=frozenset({"AccessKey", "Signature"}),
    ),
)
ANSWERS: Final = [each for each in DIFFERENCES if isinstance(each, Difference)]
ASKED: Final = [each for each in DIFFERENCES if isinstance(each, AskedDifference)]


def difference(exchange: Exchange) -> Difference | None:
    """The entry of the list that is about this exchange."""
    return next((each for each in ANSWERS if each.applies_to(exchange)), None)


def asked_facts(command: Command) -> tuple[int, int, set[str], bool] | None:
    """What counts of a request or notice that a real broker sent; None if ours sends none."""
    known = next((each for each in ASKED if each.applies_to(command)), None)
    names = set(command.ext or {})
    if known is not None:
        if known.without is None:
            return None
        names -= known.without
    return command.code, command.flag, names, bool(command.body)


def problems(exchange: Exchange) -> list[str]:
    """How our answer is not what it must be."""
    request, recorded, ours = exchange.request, exchange.recorded, exchange.ours
    if recorded is None:
        return []
    if ours is None:
        return ["not answered"]
    wanted, got = Facts.of(request, recorded), Facts.of(request, ours)
    known = difference(exchange)
    if known is not None:
        wanted = known.ours(request, wanted)
    found = [
        f"{name}: {ours_is!r}, not {recorded_is!r}"
        for name, ours_is, recorded_is in (
            ("code", got.code, wanted.code),
            ("serialize type", got.serialize_type, wanted.serialize_type),
            ("ext", _comparable(got.ext, exchange), _comparable(wanted.ext, exchange)),
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


def _comparable(ext: dict[str, str], exchange: Exchange) -> dict[str, str]:
    """Values of this run hidden. The first sends have the same ids: each record has its length."""
    hidden = OWN_VALUES
    if exchange.scenario.startswith("send-"):
        hidden = hidden - {"msgId", "transactionId"}
    return {name: "" if name in hidden else value for name, value in ext.items()}
