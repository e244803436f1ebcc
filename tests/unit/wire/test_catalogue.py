"""The catalogue is complete and consistent; it was compared with the specification."""

from __future__ import annotations

import pytest

from skylark.wire.bodies.heartbeat import HeartbeatData
from skylark.wire.bodies.route_body import TopicRouteData
from skylark.wire.catalogue import CATALOGUE, lookup, name_of
from skylark.wire.codes import RequestCode
from skylark.wire.fields import header_fields
from skylark.wire.headers.ha import LogCheckRequestHeader
from skylark.wire.headers.pull import PullMessageRequestHeader
from skylark.wire.headers.send import SendMessageRequestHeaderV2, SendMessageResponseHeader
from skylark.wire.rows.catalogue_row import Access, BodyKind, Oneway, Row


def row_of(code: int) -> Row:
    row = lookup(code)
    assert row is not None
    return row


def test_every_request_code_has_its_row() -> None:
    assert list(CATALOGUE) == sorted(int(code) for code in RequestCode)
    assert all(row.code == code for code, row in CATALOGUE.items())


def test_unused_codes_have_empty_rows() -> None:
    unused = [row for row in CATALOGUE.values() if not row.direction]
    # 1014 to 1018 travel between controllers inside Java's Raft library only.
    codes = {13, 22, 23, 27, 47, *range(50, 55), *range(209, 215), 301, 302, *range(1014, 1019)}
    assert {row.code for row in unused} == codes
    for row in unused:
        assert row == Row(row.code)


@pytest.mark.parametrize("row", CATALOGUE.values(), ids=lambda row: row.name)
def test_row_is_consistent(row: Row) -> None:
    if not row.direction:
        return
    sender, *receivers = row.direction.split("->")
    assert sender
    assert receivers
    assert row.senders | row.receivers <= set("CBSNAK")
    assert row.receivers
    if row.oneway is Oneway.ALWAYS and row.code is not RequestCode.END_TRANSACTION:
        assert row.response_header is None
        assert row.response_body is BodyKind.NONE
        assert row.response_codes == ()
    assert list(row.response_codes) == sorted(set(row.response_codes) - {0, 1, 2, 3})
    assert set(row.header_codes) <= {0, *row.response_codes}
    fields = header_fields(row.request_header) if row.request_header else ()
    names = {field.wire_name for field in fields}
    for access in row.access:
        assert access.actions
        if access.field is not None:
            assert access.field in names
        elif access.resource != "Cluster":
            assert row.request_body_type is not None, "the names must be somewhere"


def test_every_request_that_servers_handle_has_its_access_entries() -> None:
    """Only pushes to clients, and lite topics (refused by name), need no permission."""
    without = {row.name for row in CATALOGUE.values() if row.direction and not row.access}
    assert without == {
        "PUSH_REPLY_MESSAGE_TO_CLIENT",
        "CHECK_TRANSACTION_STATE",
        "NOTIFY_CONSUMER_IDS_CHANGED",
        "RESET_CONSUMER_CLIENT_OFFSET",
        "GET_CONSUMER_STATUS_FROM_CLIENT",
        "NOTIFY_UNSUBSCRIBE_LITE",
        "POP_LITE_MESSAGE",
        "LITE_SUBSCRIPTION_CTL",
        "ACK_LITE_MESSAGE",
    }


def test_send_row() -> None:
    row = row_of(310)
    assert row.name == "SEND_MESSAGE_V2"
    assert row.request_header is SendMessageRequestHeaderV2
    assert row.header_of_response(0) is SendMessageResponseHeader
    assert row.header_of_response(10) is SendMessageResponseHeader
    assert row.header_of_response(17) is None
    assert row.access == (Access("Topic", ("Pub",), "b"),)
    assert row.request_body is BodyKind.MESSAGE
    assert row.senders == {"C"}
    assert row.receivers == {"B"}


def test_body_types() -> None:
    assert row_of(34).request_body_type is HeartbeatData
    assert row_of(34).response_body_type is None
    assert row_of(105).response_body_type is TopicRouteData
    assert row_of(1006).request_body_type == list[str]
    assert row_of(11).response_body is BodyKind.RECORDS


def test_requests_that_pass_through_the_broker() -> None:
    row = row_of(307)
    assert row.senders == {"A", "B"}
    assert row.receivers == {"B", "C"}
    assert row_of(904).receivers == {"N", "K"}


def test_one_way_requests() -> None:
    always = {row.code.value for row in CATALOGUE.values() if row.oneway is Oneway.ALWAYS}
    assert always == {37, 39, 40, 220, 905}


def test_private_extensions_are_flagged() -> None:
    assert {code for code, row in CATALOGUE.items() if row.extension} == {
        *(11, 361, 26, 203, 9001, 9002, 9003)
    }
    assert row_of(9001).request_header is LogCheckRequestHeader
    bulk = {field.wire_name: field for field in header_fields(PullMessageRequestHeader)}["bulk"]
    assert not bulk.required


def test_names() -> None:
    assert name_of(310) == "SEND_MESSAGE_V2"
    assert name_of(200050) == "POP_MESSAGE"
    assert name_of(9999) == "UNKNOWN(9999)"
    assert name_of(-1) == "UNKNOWN(-1)"
    assert lookup(3442) is None  # what is left of 200050 in a binary header
