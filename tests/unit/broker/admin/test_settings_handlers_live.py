"""Settings that request 25 changes, seen at work: a test per family, and the table of them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

import skylark
from skylark.broker.config import ALWAYS_BLACK_LISTED, BrokerConfig
from skylark.broker.live_settings import READ_AT_START, START_REASONS
from skylark.core.clock import LoopClock
from skylark.core.config import settings
from skylark.store.config import REFUSED as STORE_REFUSED
from skylark.store.file_system import DiskUsage
from skylark.store.files import OsFileSystem
from skylark.store.message_store import MessageStore
from skylark.store.retention import local_hour
from skylark.wire.bodies.heartbeat import HeartbeatData, ProducerData
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import encode_body
from tests.unit.broker.members import Member, silent
from tests.unit.broker.stored import OWN, SUSPEND, Stored, bodies_of, stored
from tests.unit.broker.transaction.halves import GIVEN_UP, shop

#: Settings that hold at once, by who reads them. A new setting joins one of these lines, or
#: ``START_REASONS`` in the sources.
LIVE: Final[dict[str, str]] = {
    "registration": """
        namesrvAddr registerBrokerTimeoutMills forceRegister compressedRegister
        enableSingleTopicRegister brokerPermission
        """,
    "slaves": """
        slaveSyncInterval haFlowControlEnable haHousekeepingInterval haMaxGapNotInSync
        haSendHeartbeatInterval haSlaveFallbehindMax haSyncFromStart haTransferBatchSize
        inSyncReplicas maxHaTransferByteInSecond slaveTimeout
        """,
    "topics, groups": """
        autoCreateTopicEnable autoCreateSubscriptionGroup enableCreateSysGroup
        enableMixedMessageType validateSystemTopicWhenUpdateTopic clearRetryTopicWhenDeleteTopic
        enableSplitMetadata splitMetadataSize topicCountMax groupCountMax
        """,
    "sends": """
        regionId traceOn rejectTransactionMessage storeReplyMessageEnable recallMessageEnable
        allowRecallWhenBrokerNotWriteable startAcceptSendRequestTimeStamp maxMessageSize
        """,
    "pulls": """
        longPollingEnable shortPollingTimeMills slaveReadEnable litePullMessageEnable
        rejectPullConsumerEnable
        enablePropertyFilter filterSupportRetry filterDataCleanTimeSpan pullMaxBytes
        heldPullCountMax maxTransferBytesOnMessageInMemory maxTransferCountOnMessageInMemory
        maxTransferBytesOnMessageInDisk maxTransferCountOnMessageInDisk
        accessMessageInMemoryMaxRatio maxFilterMessageSize travelCqFileNumWhenGetMessage
        offsetCheckInSlave maxMsgsNumBatch defaultQueryMaxNum coldDataFlowControlEnable
        cgColdReadThreshold globalColdReadThreshold accessMessageInMemoryHotRatio
        """,
    "consumers": """
        notifyConsumerIdsChangedEnable realTimeNotifyConsumerChange channelExpiredTimeout
        subscriptionExpiredTimeout flushConsumerOffsetInterval consumerOffsetUpdateVersionStep
        useServerSideResetOffset enableBroadcastOffsetStore broadcastOffsetExpireSecond
        broadcastOffsetExpireMaxSecond enableRegisterProducer serverLoadBalancerEnable
        loadBalancePollNameServerInterval
        """,
    "pops": """
        defaultMessageRequestMode defaultPopShareQueueNum popFromRetryProbability
        popFromRetryProbabilityForPriority priorityOrderAsc initPopOffsetByCheckMsgInMem
        enablePopMessageThreshold popInflightMessageThreshold popResponseReturnActualRetryTopic
        enableRetryTopicV2 retrieveMessageFromPopRetryTopicV1 useSeparateRetryQueue
        maxPopPollingSize popPollingSize popLongPollingForceNotifyInterval
        enableNotifyAfterPopOrderLockRelease useMessageFilterForNotification
        maxMessageFilterNumForNotification enablePopBufferMerge popCkStayBufferTime
        popCkStayBufferTimeOut popCkMaxBufferSize popCkOffsetMaxQueueSize reviveInterval
        skipWhenCKRePutReachMaxTimes
        """,
    "delays, timers": """
        flushDelayOffsetInterval delayOffsetUpdateVersionStep timerMaxDelaySec
        timerCongestNumEachSlot timerFlushIntervalMs timerEnableRetryUntilSuccess timerStopEnqueue
        timerStopDequeue timerSkipUnknownError appendTopicForTimerDeleteKey
        """,
    "transactions": """
        transactionTimeOut transactionCheckMax transactionCheckInterval transactionOpBatchInterval
        transactionOpMsgMaxSize transactionMetricFlushInterval
        """,
    "protection": """
        brokerFastFailureEnable waitTimeMillsInSendQueue waitTimeMillsInPullQueue
        waitTimeMillsInLitePullQueue waitTimeMillsInHeartbeatQueue waitTimeMillsInTransactionQueue
        waitTimeMillsInAckQueue waitTimeMillsInAdminBrokerQueue disableConsumeIfConsumerReadSlowly
        consumerFallbehindThreshold osPageCacheBusyTimeOutMills heldSizeMax
        maxStatsIdleTimeInMinutes
        """,
    "flush": """
        syncFlushTimeout flushIntervalCommitLog flushCommitLogLeastPages
        flushCommitLogThoroughInterval flushCommitLogTimed wakeFlushWhenPutMessage
        fastFailIfNoBufferInStorePool commitIntervalCommitLog commitCommitLogLeastPages
        commitCommitLogThoroughInterval wakeCommitWhenPutMessage flushIntervalConsumeQueue
        flushConsumeQueueThoroughInterval
        """,
    "retention": """
        fileReservedTime deleteWhen cleanResourceInterval deleteFileBatchMax
        deleteCommitLogFilesInterval deleteConsumeQueueFilesInterval
        destroyMapedFileIntervalForcibly redeleteHangedFileInterval diskMaxUsedSpaceRatio
        diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio cleanFileForciblyEnable
        diskUsedBytesMax
        """,
}
SOURCES: Final = Path(skylark.__file__).parent
FILE_SIZE: Final = 64 << 10
EVERY_HOUR: Final = ";".join(map(str, range(24)))


class Disk(OsFileSystem):
    """The real one, except for how full it says it is."""

    used_percent = 10

    def disk_usage(self, path: Path) -> DiskUsage:
        free = 100 - self.used_percent
        return DiskUsage(total=100 << 20, free=free << 20, available=free << 20)


async def change(world: Stored, **texts: str | int) -> None:
    """Request 25, with settings by their Java names."""
    body = "".join(f"{key}={value}\n" for key, value in texts.items()).encode()
    answer = await world.call(RequestCode.UPDATE_BROKER_CONFIG, {}, body)
    assert (answer.code, answer.remark) == (0, None)


async def fill(world: Stored, file_count: int) -> MessageStore:
    """Write so many files of the log full, and wait until they are on disk with their views."""
    store, real = world.features.store, LoopClock()
    while len(store.log.files.files) <= file_count:
        assert (await world.send(body=bytes(16 << 10))).code == 0
    deadline = real.monotonic() + 20
    while store.checkpoint.logics_physical_offset < store.log.max_offset:
        assert real.monotonic() < deadline
        await world.clock.advance(1)
        await real.sleep(0.001)
    return store


def test_every_setting_holds_at_once_or_waits_for_a_restart() -> None:
    used = [info for info in settings(BrokerConfig) if info.section != ("ignored",)]
    one_value = {info.java for info in used if info.name in {*STORE_REFUSED, "lock_in_strict_mode"}}
    live = [key for keys in LIVE.values() for key in keys.split()]
    waiting = [key for keys in START_REASONS.values() for key in keys.split()]
    assert frozenset(waiting) == READ_AT_START
    declared = [info.java for info in used if info.java not in ALWAYS_BLACK_LISTED | one_value]
    assert sorted(live + waiting) == sorted(declared)


def test_no_constructor_keeps_a_setting_that_holds_at_once() -> None:
    """But for those that ``follow`` renews, or ``_apply`` of a feature."""
    holds = {info.name for info in settings(BrokerConfig) if info.java in " ".join(LIVE.values())}
    kept = {
        (path.name, node.attr)
        for package in ("broker", "store")
        for path in (SOURCES / package).rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and re.match("__init__$|_make", function.name)
        for node in eagerly_read(function)
        if node.attr in holds
    }
    renewed = {"message_store.py", "put_message.py", "flush.py", "transient_store_pool.py"}
    # A slave believes no record of its master to be longer: a guard, not the limit of a send.
    kept.discard(("replica_log.py", "max_message_size"))
    assert {name for name, _ in kept} <= renewed


def eagerly_read(node: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes that are read in a function, and not in one within it."""
    if isinstance(node, ast.Attribute):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.Lambda | ast.FunctionDef):
            yield from eagerly_read(child)


async def test_what_is_read_at_start_waits_for_the_next(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with stored(tmp_path) as world:
        caplog.clear()
        await change(world, brokerName="broker-z", flushDiskType="SYNC_FLUSH", traceOn="false")
        assert caplog.messages == ["these settings wait for a restart: brokerName, flushDiskType"]
        current = world.context.live.current
        assert (current.broker_name, current.trace_on) == ("broker-a", False)
        answer = await world.call(RequestCode.GET_BROKER_CONFIG)
        lines = (answer.body or b"").decode().splitlines()
        assert {"brokerName=broker-z", "flushDiskType=SYNC_FLUSH", "traceOn=false"} < set(lines)
        # The next change does not say it again, and forgets nothing.
        caplog.clear()
        await change(world, traceOn="true", flushDiskType="ASYNC_FLUSH")
        assert caplog.messages == []
        assert b"brokerName=broker-z\n" in world.context.live.edited(b"")


async def test_sends(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send(body=bytes(100))).code == 0
        await change(world, maxMessageSize=99, regionId="r9")
        assert (await world.send(body=bytes(100))).code == 13
        taken = await world.send(body=bytes(99))
        assert (taken.code, (taken.ext or {})["MSG_REGION"]) == (0, "r9")
        await change(world, maxMessageSize=5 << 20)
        assert (await world.send(body=bytes(4_500_000))).code == 0


async def test_topics_and_permissions(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        assert (await world.send("New1")).code == 0
        await change(world, autoCreateTopicEnable="false")
        assert (await world.send("New2")).code == 17
        await change(world, brokerPermission=2)
        assert (await world.pull(topic="New1")).code == 16
        await change(world, brokerPermission=6, autoCreateSubscriptionGroup="false")
        assert (await world.pull(topic="New1", consumerGroup="unknown")).code == 26


async def test_pulls(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        for number in range(12):
            await world.send(body=b"%02d" % number)
        assert len(bodies_of(await world.pull())) == 12
        await change(world, maxTransferCountOnMessageInMemory=5)
        assert len(bodies_of(await world.pull())) == 5
        await change(world, maxTransferCountOnMessageInMemory=32)
        await change(world, maxTransferBytesOnMessageInMemory=250)
        assert len(bodies_of(await world.pull())) == 1
        # With no memory to speak of, all is on disk, and a slave should serve it.
        await change(world, accessMessageInMemoryMaxRatio=0, slaveReadEnable="true")
        await change(world, maxTransferCountOnMessageInDisk=3)
        on_disk = await world.pull()
        assert len(bodies_of(on_disk)) == 3
        assert (on_disk.ext or {})["suggestWhichBrokerId"] == "1"


async def test_long_polling(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        await world.send()
        await change(world, longPollingEnable="false", shortPollingTimeMills=70)
        waiting = await world.begin_pull(1, sysFlag=OWN | SUSPEND)
        await world.clock.advance(0.07)
        assert waiting.done()
        await change(world, longPollingEnable="true")
        waiting = await world.begin_pull(1, sysFlag=OWN | SUSPEND)
        await world.clock.advance(14.9)
        assert not waiting.done()
        await world.clock.advance(0.1)
        assert (await waiting).code == 19


async def test_notices_of_changed_groups(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        first, second = (Member(world, name, silent) for name in ("m1", "m2"))
        await first.join("g", "T")
        first.notices.clear()
        await second.join("g", "T")
        assert len(first.notices) == 1
        await change(world, realTimeNotifyConsumerChange="false")
        await second.leave()
        assert len(first.notices) == 1
        await world.clock.advance(15)
        assert len(first.notices) == 2
        await change(
            world, realTimeNotifyConsumerChange="true", notifyConsumerIdsChangedEnable="false"
        )
        third = Member(world, "m3", silent)
        await third.join("g", "T")
        await world.clock.advance(15)
        assert len(first.notices) == 2
        await change(world, notifyConsumerIdsChangedEnable="true")
        await third.leave()
        assert len(first.notices) == 3
        await first.leave()


async def test_new_producers(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:

        async def beat(group: str) -> int:
            """Heartbeat of a producer; the time at which its group was heard of last, or 0."""
            data = HeartbeatData(client_id="p1", producer_data_set=[ProducerData(group_name=group)])
            answer = await world.call(RequestCode.HEART_BEAT, {}, encode_body(data))
            assert answer.code == 0
            infos = world.features.groups.producers.table_info().data.get(group, [])
            return max((info.last_update_timestamp for info in infos), default=0)

        first_ms = await beat("pg1")
        assert first_ms
        await change(world, enableRegisterProducer="false", rejectTransactionMessage="true")
        await world.clock.advance(5)
        assert await beat("pg1") == first_ms + 5_000
        assert await beat("pg2") == 0
        await change(world, enableRegisterProducer="true")
        assert await beat("pg2") != 0


async def test_silent_clients(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        member = Member(world, "m1", silent)
        await member.join("g", "T")
        await world.clock.advance(110, clients_alive=False)
        assert world.features.groups.consumers.group("g") is not None
        await member.join("g", "T")
        await change(world, channelExpiredTimeout=5_000)
        await world.clock.advance(10, clients_alive=False)
        assert world.features.groups.consumers.group("g") is None
        await member.leave()


async def test_transactions(tmp_path: Path) -> None:
    async with shop(tmp_path) as world:
        await change(world, transactionCheckInterval=1_000, transactionTimeOut=10_000)
        await world.producer.send("U1")
        await world.clock.advance(9)
        assert world.producer.check_backs == []
        await world.clock.advance(2)
        assert len(world.producer.check_backs) == 1
        await change(world, transactionTimeOut=1_000, transactionCheckMax=3)
        await world.clock.advance(6)
        assert len(world.producer.check_backs) == 3
        assert len(world.records(GIVEN_UP)) == 1


async def test_timers(tmp_path: Path) -> None:
    async with stored(tmp_path) as world:
        due_ms = world.clock.now_ms() + 5_000
        await change(world, timerMaxDelaySec=4)
        refused = await world.send(properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")
        assert refused.code == 13
        await change(world, timerMaxDelaySec=10, timerStopDequeue="true")
        taken = await world.send(properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")
        assert taken.code == 0
        await world.clock.advance(8)
        assert world.records("T") == []
        await change(world, timerStopDequeue="false")
        await world.clock.advance(2)
        assert len(world.records("T")) == 1


async def test_protection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with stored(tmp_path) as world:
        caplog.clear()
        features = world.features
        await change(world, maxStatsIdleTimeInMinutes=30)
        assert features.stats.broker_stats.idle_max_ms() == 30 * 60_000
        await change(world, heldPullCountMax=1)
        await world.send()
        held, refused = await world.begin_pull(1), await world.begin_pull(1)
        assert (held.done(), refused.done()) == (False, True)
        features.overload.guard.appended(10.0, 10.5)  # within osPageCacheBusyTimeOutMills
        assert caplog.messages == []
        await change(world, osPageCacheBusyTimeOutMills=400)
        await world.send()  # the first request after the change
        features.overload.guard.appended(20.0, 20.5)
        assert caplog.messages == ["an append took 500 ms"]


async def test_flush_intervals(tmp_path: Path) -> None:
    async with stored(tmp_path, flushCommitLogThoroughInterval="0") as world:
        files, real = world.features.store.log.files, LoopClock()
        await change(world, flushIntervalCommitLog=60_000)
        await world.clock.advance(2)  # the wait that was under way
        await world.send()
        await world.clock.advance(50)
        assert files.flushed_where < files.max_offset
        await change(world, flushIntervalCommitLog=100)
        await world.clock.advance(10)  # the minute is over
        await world.send()
        deadline = real.monotonic() + 10
        while files.flushed_where < files.max_offset:
            assert real.monotonic() < deadline
            await world.clock.advance(0.1)
            await real.sleep(0.001)


async def test_the_age_of_files(tmp_path: Path) -> None:
    given = {"deleteWhen": EVERY_HOUR, "fileReservedTime": "1"}
    async with stored(tmp_path, mappedFileSizeCommitLog=str(FILE_SIZE), **given) as world:
        store = await fill(world, 2)
        await world.clock.advance(70)
        assert store.log.files.min_offset == 0
        await change(world, fileReservedTime=0)
        await world.clock.advance(20)
        assert store.log.files.min_offset == 2 * FILE_SIZE


async def test_the_hour_of_deleting(tmp_path: Path) -> None:
    async with stored(tmp_path, mappedFileSizeCommitLog=str(FILE_SIZE)) as world:
        store = await fill(world, 2)
        other_hour = (local_hour(world.clock.now_ms()) + 12) % 24
        await change(world, deleteWhen=other_hour, fileReservedTime=0, diskMaxUsedSpaceRatio=95)
        await world.clock.advance(70)
        assert store.log.files.min_offset == 0
        await change(world, deleteWhen=EVERY_HOUR)
        await world.clock.advance(20)
        assert store.log.files.min_offset == 2 * FILE_SIZE


async def test_how_full_the_disk_may_be(tmp_path: Path) -> None:
    disk = Disk()
    given = {"mappedFileSizeCommitLog": str(FILE_SIZE), "deleteWhen": "04", "fileReservedTime": "0"}
    async with stored(tmp_path, disk, **given) as world:
        await change(world, diskMaxUsedSpaceRatio=84, cleanFileForciblyEnable="false")
        disk.used_percent = 80
        store = await fill(world, 2)
        await world.clock.advance(120)
        assert store.log.files.min_offset == 0
        await change(world, diskMaxUsedSpaceRatio=79)
        await world.clock.advance(20)
        assert store.log.files.min_offset == 2 * FILE_SIZE
        # Files that are not expired go only if that is allowed.
        await change(world, fileReservedTime=72)
        await fill(world, 3)
        disk.used_percent = 88
        await world.clock.advance(20)
        assert store.log.files.min_offset == 2 * FILE_SIZE
        await change(world, cleanFileForciblyEnable="true", diskSpaceWarningLevelRatio=87)
        await world.clock.advance(20)
        assert store.log.files.min_offset > 2 * FILE_SIZE
        assert not store.flags.writeable


async def test_files_that_are_being_read(tmp_path: Path) -> None:
    given = {"mappedFileSizeCommitLog": str(FILE_SIZE), "fileReservedTime": "0"}
    async with stored(tmp_path, **given) as world:
        store = await fill(world, 2)
        first = store.log.files.files[0]
        path = tmp_path / "store" / "commitlog" / f"{0:020}"
        with first.lease(0, 100):
            await change(world, deleteWhen=EVERY_HOUR)
            await change(
                world, destroyMapedFileIntervalForcibly=1_000, redeleteHangedFileInterval=1_000
            )
            await world.clock.advance(70)
            assert store.log.files.min_offset == 2 * FILE_SIZE
            await world.clock.advance(20)
            assert not path.exists()
