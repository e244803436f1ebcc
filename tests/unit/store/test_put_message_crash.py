"""Puts beyond the settings and beyond their limits, and what a crash leaves of them."""

from __future__ import annotations

from skylark.store.commit_log import Draft, PutLimits
from skylark.store.put_message import Putter
from skylark.store.running_flags import RunningFlags
from skylark.store.store_results import PutStatus
from skylark.testing.fault_plan import FaultPlan
from skylark.testing.faulty_file_system import FaultyFileSystem
from skylark.wire.batch import Batch, BatchMessage
from tests.unit.store.crash_store import HOST, LOG, LOG_FILE_SIZE, CrashStore

SIZE_MAX = 20
OWN = PutLimits.RECORD_FORMAT_ONLY
LARGE = b"larger than a client may send " * 10


def opened(disk: FaultyFileSystem) -> tuple[CrashStore, Putter]:
    store = CrashStore(disk, max_message_size=SIZE_MAX)
    store.open()
    flags = RunningFlags()
    return store, Putter(store.config, store.log, store.queues, store.dispatch, flags)


def draft(
    body: bytes = LARGE,
    properties: bytes = b"TAGS\x01A\x02",
    limits: PutLimits = PutLimits.SETTINGS,
) -> Draft:
    return Draft("T", 0, body, properties, born_host=HOST, limits=limits)


def test_a_copy_beyond_the_settings_is_there_whole_or_not_at_all() -> None:
    """The log is cut at every byte of such a record, as a kill within the append leaves it."""
    store, putter = opened(FaultyFileSystem(FaultPlan(1)))
    assert putter.put(draft(b"small")).status is PutStatus.PUT_OK
    last = putter.put(draft(limits=OWN))
    assert last.status is PutStatus.PUT_OK
    store.write_views()
    source = store.files
    assert isinstance(source, FaultyFileSystem)
    source = source.kill()
    name = LOG / f"{0:020d}"
    whole = source.read_file(name)
    for cut in range(last.log_offset, last.next_offset + 1):
        disk = source.kill()
        disk.install(name, whole[:cut].ljust(LOG_FILE_SIZE, b"\0"))
        after, again = opened(disk)
        survives = cut == last.next_offset
        expected = [b"small", LARGE] if survives else [b"small"]
        assert after.messages() == {("T", 0): expected}, cut
        # What was not done is done again, with the same result.
        repeated = again.put(draft(limits=OWN))
        assert (repeated.status, repeated.queue_offset) == (PutStatus.PUT_OK, len(expected))


def test_power_loss_takes_a_copy_or_leaves_it() -> None:
    outcomes = set()
    for seed in range(20):
        disk = FaultyFileSystem(FaultPlan(seed))
        store, putter = opened(disk)
        putter.put(draft(b"small"))
        store.flush_log()
        for result in putter.put_run([draft(limits=OWN), draft(limits=OWN)]):
            assert result.status is PutStatus.PUT_OK
        after, _ = opened(disk.power_loss())
        found = after.messages()["T", 0]
        assert found == [b"small", LARGE, LARGE][: len(found)], seed
        outcomes.add(len(found))
    assert len(outcomes) > 1


def test_a_refused_message_leaves_nothing_behind() -> None:
    disk = FaultyFileSystem(FaultPlan(1))
    store, putter = opened(disk)
    putter.put(draft(b"small"))
    end = store.log.max_offset
    too_many = b"k\x01" + b"v" * 32_767 + b"\x02"
    refused = [
        putter.put(draft()),
        putter.put(draft(properties=too_many, limits=OWN)),
        putter.put(draft(bytes(LOG_FILE_SIZE), limits=OWN)),
        *putter.put_run([draft(), draft()]),
        putter.put_batch(draft(b""), Batch.of([BatchMessage(LARGE)])),
    ]
    assert {result.status for result in refused} == {
        PutStatus.MESSAGE_ILLEGAL,
        PutStatus.PROPERTIES_SIZE_EXCEEDED,
    }
    assert store.log.max_offset == end
    after, putter = opened(disk.kill())
    assert after.messages() == {("T", 0): [b"small"]}
    assert putter.put(draft(b"next")).queue_offset == 1
