"""The custom header of every recorded frame decodes to its type and encodes back to the same map.

The catalogue must also agree with what Java did on the wire: who sent what to whom, one-way or
not, with or without a body.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from skylark.core.errors import HeaderFieldError
from skylark.wire.catalogue import lookup
from skylark.wire.command import Command
from skylark.wire.fields import Header, decode_ext, encode_ext, header_fields
from skylark.wire.frame import decode_frame
from skylark.wire.rows.catalogue_row import BodyKind, Oneway, Row

FRAMES = Path(__file__).parent / "data" / "frames"
#: ``errors`` holds requests that are wrong on purpose, ``ha-stream`` no remoting frames.
SCENARIOS = sorted(
    path.stem for path in FRAMES.glob("*.jsonl") if path.stem not in ("errors", "ha-stream")
)

UNKNOWN_CODE = 9999  # asked for in ``errors``

#: Entries that no header declares, with the reason.
UNDECLARED = {
    "bname": "inherited by 5.x requests: the broker that is meant",
    "lo": "inherited by 5.x topic requests: a logical queue of a static topic",
    "AccessKey": "added by the client's ACL hook",
    "SecurityToken": "added by the client's ACL hook",
    "Signature": "added by the client's ACL hook",
    "ReqT": "added by the stream hook of admin and lite pull clients",
    "MSG_REGION": "on every answer to a send, also on failures, which have no header",
    "TRACE_ON": "like MSG_REGION",
}
#: ``route-versions`` sends one hand-made map with both of its requests.
UNDECLARED_BY_CODE = {106: {"topic"}}


def recorded(scenario: str) -> list[dict[str, Any]]:
    lines = (FRAMES / f"{scenario}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def row_of(line: dict[str, Any]) -> Row:
    row = lookup(line["request_code"] if line["response"] else line["code"])
    assert row is not None
    return row


def header_type_of(line: dict[str, Any]) -> type[Header] | None:
    row = row_of(line)
    return row.header_of_response(line["code"]) if line["response"] else row.request_header


def check_header(line: dict[str, Any], command: Command) -> None:
    ext = command.ext or {}
    header_type = header_type_of(line)
    declared: set[str] = set()
    if header_type is not None:
        declared = {field.wire_name for field in header_fields(header_type)}
        typed = decode_ext(header_type, command.ext)
        assert encode_ext(typed) == {name: ext[name] for name in ext if name in declared}
    allowed = UNDECLARED_BY_CODE.get(int(row_of(line).code), set()) | set(UNDECLARED)
    assert set(ext) - declared <= allowed


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_headers_decode_and_encode_to_the_same_map(scenario: str) -> None:
    for line in recorded(scenario):
        check_header(line, decode_frame(base64.b64decode(line["raw"])))


def test_allow_list_holds_nothing_that_never_occurs() -> None:
    seen: set[str] = set()
    for scenario in SCENARIOS:
        for line in recorded(scenario):
            seen.update(decode_frame(base64.b64decode(line["raw"])).ext or {})
    assert set(UNDECLARED) <= seen


def test_wrong_requests_decode_or_raise_the_typed_error() -> None:
    refused = []
    for line in recorded("errors"):
        command = decode_frame(base64.b64decode(line["raw"]))
        if UNKNOWN_CODE in (line["code"], line.get("request_code")):
            continue
        header_type = header_type_of(line)
        if header_type is None:
            continue
        try:
            decode_ext(header_type, command.ext)
        except HeaderFieldError as error:
            refused.append((line["response"], row_of(line).name, error.field))
    # A pull and a route request without any field, and a send with the flag "abc". Java answered 1
    # to the first and the last; to the second 17, as it looked for a topic named null.
    assert refused == [
        (False, "PULL_MESSAGE", "consumerGroup"),
        (False, "GET_ROUTEINFO_BY_TOPIC", "topic"),
        (False, "SEND_MESSAGE_V2", "h"),
    ]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_catalogue_agrees_with_the_traffic(scenario: str) -> None:
    for line in recorded(scenario):
        row = row_of(line)
        if line["response"]:
            if line["body_len"] and line["code"] == 0:
                assert row.response_body is not BodyKind.NONE, row.name
            assert line["code"] == 0 or line["code"] in row.response_codes, row.name
            continue
        if line["body_len"]:
            assert row.request_body is not BodyKind.NONE, row.name
        unexpected = Oneway.NEVER if line["oneway"] else Oneway.ALWAYS
        assert row.oneway is not unexpected, row.name
        connected_side, listening_side = line["link"].removesuffix("-vip").split("-")
        receiver = listening_side if line["dir"] == "c2s" else connected_side
        assert {"client": "C", "broker": "B", "namesrv": "N"}[receiver] in row.receivers, row.name
