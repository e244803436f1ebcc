"""Send plans: what follows an attempt, by the rules of both ways to send."""

from __future__ import annotations

import pytest

from skylark.client.core.client_message import SendStatus
from skylark.client.producer.producer_settings import RETRY_CODES, ProducerSettings
from skylark.client.producer.send_retry import (
    SendMode,
    SendPlan,
)
from skylark.core.errors import (
    BrokerError,
    ClientError,
    ClientStateError,
    ConnectError,
    ConnectionClosedError,
    RequestTimeoutError,
    SendFailedError,
    SendTimeoutError,
    SkylarkError,
    TooManyRequestsError,
    broker_error,
)

OK, NOT_OK = SendStatus.SEND_OK, SendStatus.FLUSH_DISK_TIMEOUT
CLOSED = ConnectionClosedError("closed")


def plan(
    mode: SendMode = SendMode.SYNC, *, one_queue: bool = False, **policy: object
) -> SendPlan[str]:
    return SendPlan(ProducerSettings(**policy), mode, 3.0, 10.0, one_queue=one_queue)  # type: ignore[arg-type]


def test_java_retries_these_codes() -> None:
    assert {int(code) for code in RETRY_CODES} == {17, 14, 1, 2, 16, 204, 205, 1500}


@pytest.mark.spec("client.8.10")
def test_an_answer_is_retried_by_its_code() -> None:
    sync = plan()
    assert sync.begin(10.0) == 3.0
    assert sync.failed(broker_error(14, "full"), 10.5) is None
    assert sync.begin(10.5) == 2.5
    assert sync.done("r", OK, 10.6) == "r"
    refused = broker_error(13, "illegal")
    sync = plan()
    sync.begin(10.0)
    with pytest.raises(BrokerError) as raised:
        sync.failed(refused, 10.1)
    assert raised.value is refused
    with pytest.raises(BrokerError, match="no"):
        begun(plan(retry_codes=frozenset({99}))).failed(broker_error(14, "no"), 10.1)


def begun(made: SendPlan[str]) -> SendPlan[str]:
    made.begin(10.0)
    return made


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConnectError("x"), 10001),
        (RequestTimeoutError("x"), 10002),
        (ClientError("x"), 10003),
        (broker_error(14, "x"), 14),
        (CLOSED, -1),
    ],
)
def test_the_end_of_all_attempts_names_the_last_cause(error: SkylarkError, code: int) -> None:
    sync = plan()
    for _ in range(2):
        sync.begin(10.0)
        assert sync.failed(error, 10.1) is None
    sync.begin(10.1)
    with pytest.raises(SendFailedError, match=r"Send \[3\] times, still failed") as raised:
        sync.failed(error, 10.2)
    assert raised.value.response_code == code
    assert raised.value.__cause__ is error


@pytest.mark.spec("client.8.11")
def test_a_hung_broker_eats_the_time_unless_attempts_have_their_own() -> None:
    sync = plan()
    assert sync.begin(10.0) == 3.0
    error = RequestTimeoutError("no answer")
    with pytest.raises(SendTimeoutError, match="the send has timed out: 3 s, 1 attempts") as raised:
        sync.failed(error, 13.0)
    assert isinstance(raised.value, TooManyRequestsError)
    assert isinstance(raised.value, TimeoutError)
    assert raised.value.__cause__ is error
    sync = plan(attempt_timeout=0.5)
    assert sync.begin(10.0) == 0.5
    assert sync.failed(error, 10.5) is None
    assert sync.begin(10.5) == 0.5
    assert sync.failed(error, 11.0) is None
    assert sync.begin(11.0) == 2.0  # the last one has the rest
    with pytest.raises(SendFailedError) as failed:
        sync.failed(error, 13.0)
    assert failed.value.response_code == 10002


def test_no_attempt_begins_after_the_deadline() -> None:
    with pytest.raises(SendTimeoutError, match="0 attempts"):
        plan().begin(13.0)


@pytest.mark.parametrize("early_s", [0.0015, 0.0, -0.001])
def test_a_timer_that_fires_early_leaves_no_time_for_another_attempt(early_s: float) -> None:
    """The broker may have stored the message: a last moment is no reason to send it again."""
    for mode in (SendMode.SYNC, SendMode.ASYNC):
        for error in (RequestTimeoutError("no answer"), CLOSED):
            with pytest.raises(SendTimeoutError, match="1 attempts"):
                begun(plan(mode)).failed(error, 13.0 - early_s)
    capped = plan(attempt_timeout=1.5)
    assert capped.begin(10.0) == 1.5
    assert capped.failed(RequestTimeoutError("no answer"), 11.5 - early_s) is None
    assert capped.begin(11.5 - early_s) == pytest.approx(1.5 + early_s)  # all that is left
    with pytest.raises(SendTimeoutError, match="2 attempts"):
        capped.failed(RequestTimeoutError("no answer"), 13.0 - early_s)
    assert begun(plan(retry_another_broker=True)).done("stored", NOT_OK, 13.0 - early_s) == "stored"


def test_whoever_is_in_a_hurry_has_one_attempt() -> None:
    hurried: SendPlan[str] = SendPlan(ProducerSettings(), SendMode.SYNC, 0.001, 10.0)
    assert hurried.begin(10.0) == pytest.approx(0.001)
    with pytest.raises(SendTimeoutError, match="1 attempts"):
        hurried.failed(CLOSED, 10.0)


@pytest.mark.spec("client.8.12")
def test_a_result_that_is_not_ok_is_a_result() -> None:
    assert begun(plan()).done("r", NOT_OK, 10.1) == "r"
    again = plan(retry_another_broker=True)
    for result in ("1", "2"):
        again.begin(10.0)
        assert again.done(result, NOT_OK, 10.1) is None
    again.begin(10.1)
    assert again.done("3", NOT_OK, 10.2) == "3"
    assert begun(plan(retry_another_broker=True)).done("late", NOT_OK, 13.0) == "late"


def test_an_earlier_result_beats_a_later_error() -> None:
    for error in (broker_error(13, "illegal"), broker_error(14, "full"), CLOSED):
        again = plan(retry_another_broker=True, retries=1)
        again.begin(10.0)
        assert again.done("stored", NOT_OK, 10.1) is None
        again.begin(10.1)
        assert again.failed(error, 10.2) == "stored"
    again = plan(retry_another_broker=True)
    again.begin(10.0)
    assert again.done("stored", NOT_OK, 10.1) is None
    again.begin(10.1)
    assert again.failed(RequestTimeoutError("late"), 13.0) == "stored"


def test_async_retries_a_busy_broker_as_sync_does() -> None:
    busy = broker_error(2, "[TIMEOUT_CLEAN_QUEUE]")
    made = plan(SendMode.ASYNC)
    for _ in range(2):
        made.begin(10.0)
        assert made.failed(busy, 10.1) is None
    made.begin(10.1)
    with pytest.raises(SendFailedError) as failed:
        made.failed(busy, 10.2)
    assert failed.value.response_code == 2
    with pytest.raises(SendTimeoutError):  # within its timeout
        begun(plan(SendMode.ASYNC)).failed(busy, 13.0)
    with pytest.raises(BrokerError):  # the application has taken the code off the list
        begun(plan(SendMode.ASYNC, retry_codes={14})).failed(busy, 10.1)


@pytest.mark.spec("client.8.13")
def test_async_retries_what_got_no_answer_and_nothing_else() -> None:
    for error in (broker_error(14, "full"), TooManyRequestsError("x"), ClientError("x")):
        with pytest.raises(type(error)) as raised:
            begun(plan(SendMode.ASYNC)).failed(error, 10.1)
        assert raised.value is error
    made = plan(SendMode.ASYNC)
    for cut in (CLOSED, ConnectError("x")):
        made.begin(10.0)
        assert made.failed(cut, 10.1) is None
    made.begin(10.1)
    with pytest.raises(SendFailedError) as failed:
        made.failed(RequestTimeoutError("x"), 10.2)
    assert failed.value.response_code == 10002
    assert begun(plan(SendMode.ASYNC, retry_another_broker=True)).done("r", NOT_OK, 10.1) == "r"


def test_one_queue_has_one_attempt_and_the_error_as_it_is() -> None:
    for error in (CLOSED, broker_error(14, "full"), ClientError("x")):
        with pytest.raises(type(error)) as raised:
            begun(plan(one_queue=True)).failed(error, 10.1)
        assert raised.value is error
    # asynchronous sends try the same queue again
    assert begun(plan(SendMode.ASYNC, one_queue=True)).failed(CLOSED, 10.1) is None


def test_a_stopped_client_is_no_reason_to_go_on() -> None:
    with pytest.raises(ClientStateError):
        begun(plan()).failed(ClientStateError("stopped"), 10.1)
