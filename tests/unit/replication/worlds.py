"""A master, a slave and a network between them that exist only as numbers, driven by a seed.

The two state machines are the real ones, and so is :class:`RecordStream`. Logs are byte strings of
records that have nothing but a head: size, magic code, log offset, and a number that no other
record of the run has. So two logs that went different ways are told apart by any of their records.

Time is a heap of things to happen. Each direction of the link delivers in order, after a delay of
its own that is drawn for each piece. A crash of either end keeps what its disk had (all of it, or
with ASYNC_FLUSH a prefix that reaches at least the last flush) and comes up some time later.
"""

from __future__ import annotations

import heapq
import itertools
import random
import struct
from collections import Counter
from collections.abc import Callable
from typing import Any, Final
from zlib import crc32

from skylark.replication import master as m
from skylark.replication import slave as s
from skylark.replication.config import ReplicationConfig
from skylark.store.record_stream import RecordStream, RecordStreamError
from skylark.wire.layout import BLANK_RECORD, MAGIC_BLANK, MAGIC_V1

FILE_SIZE: Final = 1_000
_RECORD: Final = struct.Struct(">iiQ12xqQ")  # size, magic, number, log offset, number
FAULT_MS: Final = 30_000  # how long things go wrong
CALM_MS: Final = 26_000  # and how long they have to become right


class Log:
    """A log in memory: what was appended, and up to where the disk has it."""

    def __init__(self, *, synchronous: bool) -> None:
        self.content = b""
        self.flushed = 0
        self.synchronous = synchronous

    def crash(self, rng: random.Random) -> int:
        """Lose what the disk does not have; returns how many bytes that was."""
        kept = self.flushed
        if not self.synchronous and rng.random() < 0.5:
            kept = rng.choice([*self._ends(self.flushed), self.flushed])
        lost = len(self.content) - kept
        self.content = self.content[:kept]
        self.flushed = kept
        return lost

    def _ends(self, start: int) -> list[int]:
        """Ends of records behind an offset, which may lie in a blank: what recovery may find."""
        ends, position = [], 0
        while position + 8 <= len(self.content):
            position += BLANK_RECORD.unpack_from(self.content, position)[0]
            if start < position <= len(self.content):
                ends.append(position)
        return ends

    def checksum(self, log_offset: int, size: int) -> int | None:
        if log_offset > len(self.content):
            return None
        return crc32(self.content[log_offset - size : log_offset])


class World:
    """One run."""

    def __init__(self, seed: int, **settings: Any) -> None:
        self.rng = rng = random.Random(seed)
        self.now_ms = 0
        self._order = itertools.count()
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self.synchronous = rng.random() < 0.5
        self.config = ReplicationConfig(
            in_sync_replicas=2,
            ha_transfer_batch_size=rng.choice((61, 250, 600)),
            ha_truncate_ahead=rng.random() < 0.5,
            ha_sync_from_start=True,
            ha_flow_control_enable=rng.random() < 0.2,
            max_ha_transfer_byte_in_second=rng.choice((3_000, 100_000)),
            **settings,
        )
        self.counts: Counter[str] = Counter()
        self.numbers = itertools.count(1)
        self.histories: list[bytes] = []  # logs of the master as they were before it lost something
        self.acknowledged: list[bytes] = []  # records that a sender knows to be on both
        self.waiting: list[tuple[int, bytes]] = []
        self.delay_ms = {"up": rng.choice((1, 20, 400)), "down": rng.choice((1, 20, 400))}
        self.master_end = MasterEnd(self)
        self.slave_end = SlaveEnd(self)

    def at(self, delay_ms: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_ms + delay_ms, next(self._order), action))

    def run(self, until_ms: int) -> None:
        while self._due and self._due[0][0] <= until_ms:
            self.now_ms, _, action = heapq.heappop(self._due)
            action()
        self.now_ms = until_ms

    def misses(self) -> bool:
        """Whether an attempt to reach the master fails for no reason."""
        return self.now_ms < FAULT_MS and self.rng.random() < 0.1

    def cut_link(self) -> None:
        self.counts["cut"] += 1
        self.master_end.break_link()
        self.slave_end.break_link()

    def live(self) -> None:
        """Let things go wrong for a while, and then let them become right."""
        rng = self.rng
        self.master_end.start()
        self.slave_end.start()
        for _ in range(rng.randint(5, 25)):
            self.at(rng.randrange(FAULT_MS), self.master_end.put)
        for _ in range(rng.randint(0, 5)):
            fault = rng.choice((self.cut_link, self.master_end.crash, self.slave_end.crash))
            self.at(rng.randrange(FAULT_MS), fault)
        self.run(FAULT_MS)
        self.at(CALM_MS // 2, self.master_end.put)
        self.run(FAULT_MS + CALM_MS)


class _End:
    """What master and slave share: a log, a timer, and being up or down."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.log = Log(synchronous=world.synchronous)
        self.up = False
        self.life = 0  # number of the process
        self._timer_ms: int | None = None

    def set_timer(self, deadline: int | None) -> None:
        if deadline is None or (self._timer_ms is not None and self._timer_ms <= deadline):
            return
        self._timer_ms = deadline
        life = self.life

        def fire() -> None:
            if self.up and self.life == life and self._timer_ms == deadline:
                self._timer_ms = None
                self.tick()

        self.world.at(max(0, deadline - self.world.now_ms), fire)

    def tick(self) -> None:
        raise NotImplementedError

    def flush(self) -> None:
        if self.up:
            self.log.flushed = len(self.log.content)


class MasterEnd(_End):
    """The master's process, around its state machine."""

    def start(self) -> None:
        self.up = True
        self.life += 1
        self._timer_ms = None
        self.machine = m.Master(self.world.config, file_size=FILE_SIZE)
        self.link: Link | None = None

    def put(self) -> None:
        """Store a message, whose sender waits for disk and slave."""
        world = self.world
        if not self.up:
            return
        offset = len(self.log.content)
        size = world.rng.randint(91, 300)
        room = FILE_SIZE - offset % FILE_SIZE
        if size + 8 > room:
            blank = BLANK_RECORD.pack(room, MAGIC_BLANK)
            self.log.content += blank.ljust(room, b"\0")
            offset += room
        number = next(world.numbers)
        record = _RECORD.pack(size, MAGIC_V1, number, offset, number)
        record = record.ljust(size, bytes([number % 256]))
        self.log.content += record
        world.counts["put"] += 1
        world.waiting.append((offset + size, record))
        if self.log.synchronous:
            world.at(world.rng.choice((0, 5, 500)), self._flushed)
        else:
            world.at(world.rng.choice((10, 10_000)), self.flush)
            self.handle(m.LogChanged(0, offset + size))

    def _flushed(self) -> None:
        self.flush()
        if self.up:
            self.handle(m.LogChanged(0, self.log.flushed))

    def crash(self) -> None:
        if not self.up:
            return
        self.break_link()
        self.world.slave_end.break_link()
        self.up = False
        self.world.waiting.clear()
        before = self.log.content
        if self.log.crash(self.world.rng):
            self.world.histories.append(before)
            self.world.counts["master lost bytes"] += 1
        self.world.counts["master crash"] += 1
        self.world.at(self.world.rng.choice((100, 7_000)), self.start)

    def break_link(self) -> None:
        if self.up and self.link is not None:
            self.link = None
            self.handle(m.SlaveLeft(1))

    def accept(self, link: Link) -> None:
        if self.link is not None:
            self.handle(m.SlaveLeft(1))
        self.link = link
        self.handle(m.LogChanged(0, self._readable()))
        self.handle(m.SlaveJoined(1, "slave"))

    def _readable(self) -> int:
        return self.log.flushed if self.log.synchronous else len(self.log.content)

    def tick(self) -> None:
        self.handle(m.Tick())

    def handle(self, event: m.MasterEvent) -> None:
        transferred = False
        link = self.link
        for instruction in self.machine.handle(event, self.world.now_ms):
            match instruction:
                case m.Transfer():
                    transferred = True
                    offset = instruction.log_offset
                    body = self.log.content[offset : offset + instruction.size]
                    assert len(body) == instruction.size
                    if link is not None:
                        link.down(s.FrameArrived(offset, body))
                case m.Confirmed():
                    self._confirmed(instruction.log_offset)
                case m.Drop():
                    self.world.counts["drop"] += 1
                    self.link = None
                    self.world.slave_end.break_link()
        if transferred:
            life = self.life

            def drained() -> None:
                if self.up and self.life == life and self.link is link:
                    self.handle(m.SlaveDrained(1))

            self.world.at(1, drained)
        self.set_timer(self.machine.deadline)

    def _confirmed(self, log_offset: int) -> None:
        world = self.world
        limit = min(log_offset, self._readable())
        while world.waiting and world.waiting[0][0] <= limit:
            world.acknowledged.append(world.waiting.pop(0)[1])
            world.counts["acknowledged"] += 1


class SlaveEnd(_End):
    """The slave's process, around its state machine."""

    def start(self) -> None:
        self.up = True
        self.life += 1
        self._timer_ms = None
        self.machine = s.Slave(self.world.config)
        self.link: Link | None = None
        self.stream: RecordStream | None = None
        self.handle(s.MasterFound("master:10912"))

    def crash(self) -> None:
        if not self.up:
            return
        self.break_link()
        self.world.master_end.break_link()
        self.up = False
        if self.log.crash(self.world.rng):
            self.world.counts["slave lost bytes"] += 1
        self.world.counts["slave crash"] += 1
        self.world.at(self.world.rng.choice((100, 7_000)), self.start)

    def break_link(self) -> None:
        if self.up and self.link is not None:
            self.link = None
            self.handle(s.Lost("cut"))

    def tick(self) -> None:
        self.handle(s.Tick())

    def handle(self, first: s.SlaveEvent) -> None:
        events = [first]
        while events:
            for instruction in self.machine.handle(events.pop(0), self.world.now_ms):
                match instruction:
                    case s.Connect():
                        self.world.at(1, self._later(self._connect))
                    case s.Disconnect():
                        self.link = None
                        self.stream = None
                        self.world.master_end.break_link()
                    case s.CompareTail(offset, size):
                        self._compare(offset, size)
                    case s.Cut(offset):
                        self.world.counts["cut log"] += 1
                        self.log.content = self.log.content[: self._record_end(offset)]
                        self.log.flushed = len(self.log.content)
                        self.stream = None
                        events.append(s.Connected(self._position()))
                    case s.Append(offset, body):
                        events += self._append(offset, body)
                    case s.Report(log_end):
                        assert not self.log.synchronous or log_end <= self.log.flushed
                        if self.link is not None:
                            self.link.up(m.SlaveReported(1, log_end))
        self.set_timer(self.machine.deadline)

    def _later(self, action: Callable[[], None]) -> Callable[[], None]:
        life = self.life

        def run() -> None:
            if self.up and self.life == life:
                action()

        return run

    def _connect(self) -> None:
        world = self.world
        if not world.master_end.up or world.misses():
            self.handle(s.Lost("refused"))
            return
        self.link = Link(world)
        self.stream = None
        self.log.content = self.log.content[: self._record_end(len(self.log.content))]
        self.log.flushed = min(self.log.flushed, len(self.log.content))
        world.master_end.accept(self.link)
        self.handle(s.Connected(self._position()))

    def _compare(self, offset: int, size: int) -> None:
        world, link = self.world, self.link
        ours = self.log.checksum(offset, size)

        def answer() -> None:
            reply = s.TailAnswer.UNREACHABLE
            if world.master_end.up and not world.misses():
                theirs = world.master_end.log.checksum(offset, size)
                reply = s.TailAnswer.SAME if ours == theirs else s.TailAnswer.DIFFERENT
                if theirs is None:
                    reply = s.TailAnswer.AHEAD

            def arrive() -> None:
                if self.link is link:
                    self.handle(s.TailCompared(reply))

            world.at(world.rng.choice((1, 50)), self._later(arrive))

        world.at(world.rng.choice((1, 50)), answer)

    def _append(self, offset: int, body: bytes) -> list[s.SlaveEvent]:
        if self.stream is None:
            self.stream = RecordStream(len(self.log.content), FILE_SIZE, record_size_max=FILE_SIZE)
        try:
            whole = self.stream.take(offset, body)
        except RecordStreamError as error:
            self.world.counts["refused bytes"] += 1
            return [s.Lost(str(error), is_fault=True)]
        self.log.content += whole
        self.check_prefix()
        delay_ms = self.world.rng.choice((0, 5, 300) if self.log.synchronous else (5, 5_000))
        self.world.at(delay_ms, self._later(self._flushed))
        return [self._moved()]

    def _flushed(self) -> None:
        self.flush()
        self.handle(self._moved())

    def _moved(self) -> s.LogMoved:
        log = self.log
        end = len(log.content)
        return s.LogMoved(end, log.flushed if log.synchronous else end)

    def _position(self) -> s.LogPosition:
        moved = self._moved()
        tail_offset = self._record_end(moved.log_end)
        size = tail_offset - (tail_offset - 1) // FILE_SIZE * FILE_SIZE if tail_offset else 0
        return s.LogPosition(0, moved.log_end, moved.durable_end, tail_offset, size)

    def _record_end(self, limit: int) -> int:
        """End of the last record, blanks aside."""
        end = position = 0
        while position + 8 <= limit:
            size, magic = BLANK_RECORD.unpack_from(self.log.content, position)
            position += size
            if magic != MAGIC_BLANK and position <= limit:
                end = position
        return end

    def check_prefix(self) -> None:
        """What the slave has, its master has or had, from the first byte on."""
        content = self.log.content
        known = (self.world.master_end.log.content, *self.world.histories)
        assert any(history.startswith(content) for history in known), "a log of two histories"


class Link:
    """Both directions of a connection, in order; dead once its ends have forgotten it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._arrival_ms = {"up": 0, "down": 0}

    def _delay(self, direction: str) -> int:
        world = self._world
        arrival = world.now_ms + world.rng.randint(0, world.delay_ms[direction])
        arrival = self._arrival_ms[direction] = max(arrival, self._arrival_ms[direction])
        return arrival - world.now_ms

    def up(self, event: m.SlaveReported) -> None:
        end = self._world.master_end

        def arrive() -> None:
            if end.up and end.link is self:
                end.handle(event)

        self._world.at(self._delay("up"), arrive)

    def down(self, event: s.FrameArrived) -> None:
        end = self._world.slave_end

        def arrive() -> None:
            if end.up and end.link is self:
                end.handle(event)

        self._world.at(self._delay("down"), arrive)
