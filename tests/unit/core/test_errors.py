"""The exception tree: codes, texts, and what may be tried again."""

from __future__ import annotations

import pytest

from skylark.core.errors import (
    BrokerError,
    CannotReplyError,
    ClientError,
    ClientStateError,
    ConnectError,
    InvalidMessageError,
    NoNameServerError,
    NoRouteError,
    QueryNotFoundError,
    RequestReplyTimeoutError,
    RequestTimeoutError,
    SendFailedError,
    SkylarkError,
    SystemBusyError,
    TooManyRequestsError,
    TransportError,
    broker_error,
)


def test_a_broker_error_is_chosen_by_its_code() -> None:
    error = broker_error(22, "no offset", broker_address="10.0.0.1:10911")
    assert type(error) is QueryNotFoundError
    assert str(error) == "CODE: 22  DESC: no offset BROKER: 10.0.0.1:10911"
    assert (error.remark, error.response_code) == ("no offset", 22)
    assert not error.retriable
    unknown = broker_error(4711, "what", hint="why", broker_address="a:1")
    assert type(unknown) is BrokerError
    assert str(unknown) == "CODE: 4711  DESC: what BROKER: a:1: why"
    assert broker_error(2, "busy").retriable


def test_at_the_server_the_text_is_the_remark() -> None:
    assert str(SystemBusyError("busy")) == "busy"
    assert str(SystemBusyError("busy", hint="wait")) == "busy: wait"


@pytest.mark.parametrize(
    ("error_class", "code", "retriable"),
    [
        (ClientError, -1, False),
        (ClientStateError, -1, False),
        (InvalidMessageError, 13, False),
        (SendFailedError, -1, True),
        (NoNameServerError, 10004, True),
        (NoRouteError, 10005, True),
        (RequestReplyTimeoutError, 10006, True),
        (CannotReplyError, 10007, False),
    ],
)
def test_client_errors_have_javas_codes(
    error_class: type[ClientError], code: int, retriable: bool
) -> None:
    error = error_class("text", hint="hint")
    assert (error.response_code, error.retriable, str(error)) == (code, retriable, "text: hint")
    assert error_class("text", response_code=7).response_code == 7
    assert isinstance(error, ClientError)
    assert isinstance(error, SkylarkError)


def test_running_out_of_time_is_a_timeout_error() -> None:
    for error in (RequestTimeoutError("late", hint="h"), RequestReplyTimeoutError("late")):
        with pytest.raises(TimeoutError) as caught:
            raise error
        assert caught.value is error
        assert error.retriable
    assert str(RequestTimeoutError("late", hint="h")) == "late: h"
    assert isinstance(RequestTimeoutError("late"), TransportError)
    assert not isinstance(ConnectError("no"), TimeoutError)
    assert TooManyRequestsError.retriable
