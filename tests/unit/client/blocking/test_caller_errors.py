"""Errors about servers that cannot be reached: what a program prints that does not catch them."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable

import pytest

import skylark
from skylark import ClientOptions, ConnectError, Message, NoNameServerError, SendFailedError
from skylark.client.blocking.caller_errors import without_frames
from skylark.core.errors import ConfigError, InvalidMessageError, SkylarkError
from skylark.sync import Admin, LitePullConsumer, Producer, PushConsumer, read_arrow

NOBODY = ClientOptions(namesrv="127.0.0.1:1", start_timeout=0)
TEXT = (
    "no name server answers: no connection to 127.0.0.1:1:"
    " nothing listens there (Connection refused): start one, or correct the address"
    " (namesrv=..., NAMESRV_ADDR)\n"
)


def send() -> None:
    with Producer("g", NOBODY) as producer:
        producer.send(Message("T", b"x"))


def submit() -> None:
    with Producer("g", NOBODY) as producer:
        producer.submit(Message("T", b"x")).result(20)


def enter() -> None:
    with LitePullConsumer("g", NOBODY).subscribe("T"):
        raise AssertionError


def start() -> None:
    consumer = PushConsumer("g", NOBODY)
    consumer.subscribe("T")(print)
    consumer.start()


def transact() -> None:
    with Producer("g", NOBODY) as producer:
        producer.transaction_checker(lambda message: None)
        with producer.transaction(Message("T", b"x")):
            raise AssertionError


def iterate() -> None:
    next(iter(read_arrow("T", NOBODY)))


@pytest.mark.parametrize("use", [send, submit, enter, start, transact, iterate])
def test_only_the_line_of_the_program_and_the_message_are_shown(use: Callable[[], None]) -> None:
    with pytest.raises((NoNameServerError, SendFailedError)) as caught:
        use()
    shown = traceback.format_exception(caught.value)
    assert shown[-1].endswith(TEXT)
    assert "".join(shown).count("Traceback") == 1  # no chain
    frames = [frame.filename for frame in traceback.extract_tb(caught.value.__traceback__)]
    inner = [name for name in frames if name.startswith(str(next(iter(skylark.__path__))))]
    assert len(inner) <= 2, inner
    assert frames[-len(inner) - 1] == __file__ or use is submit


def test_an_admin_client_too() -> None:
    with (
        pytest.raises(NoNameServerError, match="start one with `skylark up`") as caught,
        Admin(NOBODY) as admin,
    ):
        admin.topics.describe("T")
    assert "".join(traceback.format_exception(caught.value)).count("Traceback") == 1


def test_the_log_has_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG, "skylark.client.blocking.caller_errors"),
        pytest.raises(NoNameServerError),
    ):
        send()
    (record,) = [each for each in caplog.records if each.name.endswith("caller_errors")]
    assert record.levelno == logging.DEBUG
    assert record.exc_info is not None


def fail(error: Exception, cause: Exception) -> None:
    """Raise the error because of the cause, each with a frame of its own."""
    with pytest.raises(type(cause)):
        raise cause
    raise error from cause


def raised(error: SkylarkError, cause: Exception) -> SkylarkError:
    """The error as it was caught, with the frames of both."""
    with pytest.raises(type(error)):
        fail(error, cause)
    assert error.__traceback__
    assert cause.__traceback__
    return error


def test_the_cause_of_a_failed_send_stays_without_its_own_frames() -> None:
    cause = ConnectError("no connection to h:1")
    raised(cause, OSError("refused"))
    error = raised(SendFailedError("Send [3] times, still failed"), cause)
    assert without_frames(error) is error
    assert error.__cause__ is cause
    assert traceback.format_exception(error) == [
        "skylark.core.errors.ConnectError: no connection to h:1\n",
        "\nThe above exception was the direct cause of the following exception:\n\n",
        "skylark.core.errors.SendFailedError: Send [3] times, still failed\n",
    ]


def test_a_cause_that_is_part_of_the_message_goes() -> None:
    cause = ConnectError("no connection to h:1")
    error = raised(SendFailedError(f"send message Exception: {cause}"), cause)
    assert without_frames(error).__cause__ is None


def test_the_cause_of_a_wrong_setting_stays() -> None:
    cause = ModuleNotFoundError("no module named fastavro")
    error = raised(ConfigError("schemas need a library"), cause)
    assert without_frames(error).__cause__ is cause


def test_other_errors_keep_the_place_that_raised_them() -> None:
    with Producer("g", NOBODY) as producer, pytest.raises(InvalidMessageError) as caught:
        producer.send(Message("T", b"x" * 5_000_000))
    assert len(traceback.extract_tb(caught.value.__traceback__)) > 4
