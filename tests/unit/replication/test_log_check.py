"""Two brokers compare the ends of their logs."""

from __future__ import annotations

from zlib import crc32

import pytest

from skylark.core.errors import ConnectError, HeaderFieldError, InvalidParameterError
from skylark.replication.log_check import CHECK_SIZE_MAX, answer_log_check, ask_log_check
from skylark.replication.slave import TailAnswer
from skylark.store.config import BrokerRole
from skylark.store.message_store import MessageStore
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to
from tests.unit.replication.sites import log_bytes, site


async def ask(store: MessageStore, log_offset: int, size: int, crc: int) -> TailAnswer:
    async def call(request: Command) -> Command:
        assert request.code == RequestCode.LOG_CHECK
        return answer_log_check(store.log.files, request)

    return await ask_log_check(call, log_offset, size, crc)


async def test_the_same_bytes_are_told_from_others_also_across_files() -> None:
    async with site() as place:
        master = place.store(BrokerRole.ASYNC_MASTER)
        place.put(master, 80)
        content = log_bytes(master)
        end = len(content)
        assert len(master.log.files.files) > 2
        for log_offset, size in ((end, 100), (end, end), (9_000, 2_000), (1, 1)):
            crc = crc32(content[log_offset - size : log_offset])
            assert await ask(master, log_offset, size, crc) is TailAnswer.SAME
            assert await ask(master, log_offset, size, crc ^ 1) is TailAnswer.DIFFERENT


async def test_a_log_that_ends_before_or_begins_after_says_so() -> None:
    async with site() as place:
        master = place.store(BrokerRole.ASYNC_MASTER)
        place.put(master, 80)
        end = master.log.max_offset
        assert await ask(master, end + 1, 10, 0) is TailAnswer.AHEAD
        master.log.files.retire_oldest(place.clock.monotonic())
        assert await ask(master, 8_200, 9, 0) is TailAnswer.GONE
        assert await ask(master, 100, 10, 0) is TailAnswer.GONE


@pytest.mark.parametrize(
    ("log_offset", "size"), [(10, 0), (10, -1), (10, 11), (-5, 1), (1 << 40, CHECK_SIZE_MAX + 1)]
)
async def test_impossible_questions_are_refused(log_offset: int, size: int) -> None:
    async with site() as place:
        master = place.store(BrokerRole.ASYNC_MASTER)
        ext = {"logOffset": str(log_offset), "size": str(size)}
        with pytest.raises(InvalidParameterError):
            answer_log_check(master.log.files, Command(code=RequestCode.LOG_CHECK, ext=ext))
        with pytest.raises(HeaderFieldError):
            answer_log_check(master.log.files, Command(code=RequestCode.LOG_CHECK))


@pytest.mark.parametrize(
    ("code", "expected"),
    [(3, TailAnswer.UNSUPPORTED), (1, TailAnswer.UNREACHABLE), (0, TailAnswer.UNREACHABLE)],
)
async def test_other_answers_are_no_answer_but_a_java_brokers(
    code: int, expected: TailAnswer
) -> None:
    async def call(request: Command) -> Command:
        return response_to(request, code)

    assert await ask_log_check(call, 10, 1, 0) is expected


async def test_a_master_that_cannot_be_reached_gives_no_answer() -> None:
    async def call(request: Command) -> Command:
        raise ConnectError("nobody there")

    assert await ask_log_check(call, 10, 1, 0) is TailAnswer.UNREACHABLE
