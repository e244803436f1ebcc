"""Replication: what waiting for a slave costs, and how quickly a slave catches up.

``make bench PART=replication``; ``ROWS='*64*'`` or ``ROWS='catch*'`` picks rows (what they are
compared with comes along), ``ARGS="--rounds 7 --json FILE"`` measures more often and appends
results to a file, where a second run at the same commit finds them (:mod:`bench.harness`). Brokers
are processes of their own, with their data on the disk of the checkout; logs are flushed
asynchronously. Rows of a group are measured in alternating rounds, forward and backward; a figure
is the median, a ratio the median of the ratios within each round.

``64 senders``             1 KB messages to a master without slaves, a request for each
``64 senders, replicated``  the same to a SYNC_MASTER with ``inSyncReplicas=2``: each answer waits
                           for the slave, another busy process
``copy``                   the files of a log of 1 KB records through a socket into a file, by
                           ``sendfile`` and plain reads and writes
``catch-up``               a new slave gets the same log from its master, from when it is connected
                           until it has acknowledged everything; its views are made as well

The last column is the processor time of each process, in seconds per 100,000 messages or per GB.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from bench.harness import BenchError, Ledger, current_commit, machine_facts, run_program
from bench.owner import Owner
from bench.store import draft, open_store
from skylark.client.core.broker_calls import Caller, checked, open_caller
from skylark.store.store_results import PutStatus
from skylark.wire.bodies.ha_body import HARuntimeInfo
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import decode_body
from tests.interop.ours import SkylarkBroker, SkylarkNamesrv

BENCH = "replication"
ROUNDS = 5
BODY_SIZE = 1024
SEND_COUNT = 20_000
LOG_SIZE = 512 << 20
LOG_FILE_SIZE = 128 << 20
SAMPLE_TIMEOUT_S = 300.0
LOOK_S = 0.005
#: Bytes per second that are enough, whatever a copy does.
CATCH_UP_RATE = 150e6
FLOOR_SHARE = 0.5

ALONE, REPLICATED, COPY, CATCH_UP = "64 senders", "64 senders, replicated", "copy", "catch-up"
FLOORS = {ALONE: None, REPLICATED: ALONE, COPY: None, CATCH_UP: COPY}


@dataclass
class Sample:
    """One sample: messages or bytes, and the processor time of each process."""

    count: int
    wall_s: float
    processor_s: dict[str, float]

    @property
    def rate(self) -> float:
        return self.count / self.wall_s


# ---- processes ----------------------------------------------------------------------------------


def processor_s(broker: SkylarkBroker) -> float:
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_python(module: str, *arguments: object) -> dict[str, Any]:
    """Run a module of ours to its end; the JSON in its last line."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SAMPLE_TIMEOUT_S, check=False
    )
    if done.returncode or not done.stdout:
        raise BenchError(f"{module} failed: {done.stderr[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def broker(namesrv: str, folder: Path, **settings: object) -> SkylarkBroker:
    return SkylarkBroker(
        namesrv,
        {
            "brokerIP1": "127.0.0.1",
            "mappedFileSizeCommitLog": LOG_FILE_SIZE,
            "maxHashSlotNum": 5_000_000,
            "maxIndexNum": 20_000_000,
            **settings,
        },
        folder=folder,
    )


MASTER: dict[str, object] = {
    "brokerRole": "SYNC_MASTER",
    "inSyncReplicas": 2,
    "haSyncFromStart": "true",
}
SLAVE: dict[str, object] = {"brokerRole": "SLAVE", "brokerId": 1}


async def acknowledged_end(caller: Caller, address: str) -> tuple[int, int] | None:
    """How far the slave of a master is, and the end of the log; None without a slave."""
    answer = await caller.call(address, Command(code=RequestCode.GET_BROKER_HA_STATUS))
    status = decode_body(HARuntimeInfo, checked(answer, address).body or b"{}")
    if not status.ha_connection_info:
        return None
    return status.ha_connection_info[0].slave_ack_offset, status.master_commit_log_max_offset


def until_followed(address: str) -> float:
    """Seconds from when a slave is connected until it has everything."""

    async def watch() -> float:
        began: float | None = None
        deadline = time.monotonic() + SAMPLE_TIMEOUT_S
        async with open_caller() as caller:
            while time.monotonic() < deadline:
                found = await acknowledged_end(caller, address)
                now = time.perf_counter()
                if found is not None:
                    began = now if began is None else began
                    if found[0] == found[1]:
                        return max(now - began, LOOK_S)  # little is through before the first look
                await asyncio.sleep(LOOK_S)
        raise BenchError("the slave does not catch up")

    return asyncio.run(watch())


# ---- senders ------------------------------------------------------------------------------------


class Senders:
    """A master alone, and a pair; both run, and one is idle while the other is measured."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._namesrvs: dict[str, str] = {}
        self._brokers: dict[str, dict[str, SkylarkBroker]] = {}
        self._topics = 0
        pairs: dict[str, dict[str, dict[str, object]]] = {
            ALONE: {"master": {}},
            REPLICATED: {"master": MASTER, "slave": SLAVE},
        }
        for case, roles in pairs.items():
            home = folder / str(len(roles))
            namesrv = stack.enter_context(SkylarkNamesrv(folder=home / "namesrv"))
            self._namesrvs[case] = namesrv.address
            self._brokers[case] = {
                role: stack.enter_context(broker(namesrv.address, home / role, **settings))
                for role, settings in roles.items()
            }
        until_followed(self._brokers[REPLICATED]["master"].address)

    def sample(self, case: str, count: int) -> Sample:
        self._topics += 1
        brokers = self._brokers[case]
        before = {role: processor_s(each) for role, each in brokers.items()}
        found = run_python(
            "bench.replication_load.sending",
            *(self._namesrvs[case], f"bench-{self._topics}", count, BODY_SIZE),
        )
        used = {role: processor_s(each) - before[role] for role, each in brokers.items()}
        return Sample(count, found["wall_s"], {"client": found["processor_s"], **used})


# ---- catching up --------------------------------------------------------------------------------


def make_log(root: Path, size: int) -> None:
    """Fill a store with 1 KB messages."""
    owner = Owner()
    store = open_store(root, owner, mapped_file_size_commit_log=LOG_FILE_SIZE)
    body = bytes(BODY_SIZE)
    for number in itertools.count():
        if store.put(draft(body, number)).status is not PutStatus.PUT_OK:
            raise BenchError("the log cannot be made")
        if number % 1_000 == 0:
            owner.turn()
            if store.log.max_offset >= size:
                break
    store.close()


class CatchingUp:
    """A master with a log, new slaves one after the other, and the files of the log."""

    def __init__(self, folder: Path, stack: ExitStack, log_size: int) -> None:
        self._folder = folder
        self._namesrv = stack.enter_context(SkylarkNamesrv(folder=folder / "namesrv"))
        self._master = broker(self._namesrv.address, folder / "master", **MASTER)
        make_log(self._master.store, log_size)
        self._files = sorted((self._master.store / "commitlog").iterdir())
        self._size = sum(file.stat().st_size for file in self._files)
        stack.enter_context(self._master)

    def copy(self) -> Sample:
        module, target = "bench.replication_load.copying", self._folder / "copy"
        command = [sys.executable, "-m", module, "send", *map(str, self._files)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
            assert sender.stdout is not None
            port = sender.stdout.readline().strip()
            found = run_python(module, "receive", port, target, self._size)
        target.unlink()
        return Sample(self._size, found["wall_s"], {"receiver": found["processor_s"]})

    def catch_up(self) -> Sample:
        home = self._folder / "slave"
        master_s = processor_s(self._master)
        with broker(self._namesrv.address, home, **SLAVE) as slave:
            started_s = processor_s(slave)
            wall_s = until_followed(self._master.address)
            used = {
                "master": processor_s(self._master) - master_s,
                "slave": processor_s(slave) - started_s,
            }
            size = sum(file.stat().st_size for file in (slave.store / "commitlog").iterdir())
            slave.kill()
        shutil.rmtree(home)
        if size < self._size:
            raise BenchError(f"the slave has {size} of {self._size} bytes")
        return Sample(self._size, wall_s, used)


# ---- results ------------------------------------------------------------------------------------


@dataclass
class Result:
    """What was measured for one row; ``goals`` are texts and whether they were met."""

    case: str
    unit: str
    rates: list[float]  #: messages or bytes per second, of each round
    processor_s: dict[str, float]  #: for 100,000 messages or a GB, by process
    floor: str | None = None
    ratio: float | None = None  #: rate over that of the floor
    goals: list[tuple[str, bool]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return statistics.median(self.rates)


def make_result(case: str, samples: Sequence[Sample], floors: Sequence[Sample]) -> Result:
    is_send = case in (ALONE, REPLICATED)
    portion = 1e5 if is_send else 1e9
    used = {
        process: statistics.median(each.processor_s[process] / each.count for each in samples)
        * portion
        for process in samples[0].processor_s
    }
    rates = [each.rate for each in samples]
    result = Result(case, "messages/s" if is_send else "bytes/s", rates, used)
    if floors:
        result.floor = FLOORS[case]
        pairs = zip(samples, floors, strict=True)
        result.ratio = statistics.median(mine.rate / floor.rate for mine, floor in pairs)
        text, met = f"{FLOOR_SHARE:g}x", result.ratio >= FLOOR_SHARE
        if case == CATCH_UP:
            text, met = (
                f"{CATCH_UP_RATE / 1e6:g} MB/s or {text}",
                met or result.rate >= CATCH_UP_RATE,
            )
        result.goals.append((text, met))
    return result


def shown_rate(result: Result) -> str:
    if result.unit == "bytes/s":
        return f"{result.rate / 1e6:,.0f} MB/s"
    return f"{result.rate:,.0f}/s"


def format_table(results: Sequence[Result]) -> str:
    lines = [("case", "rate", "from", "to", "to its floor", "goal", "processor")]
    for result in results:
        scale = 1e6 if result.unit == "bytes/s" else 1
        goals = [f"{text}: {'met' if met else 'MISSED'}" for text, met in result.goals]
        used = [f"{process} {seconds:.2f} s" for process, seconds in result.processor_s.items()]
        lines.append(
            (
                result.case,
                shown_rate(result),
                f"{min(result.rates) / scale:,.0f}",
                f"{max(result.rates) / scale:,.0f}",
                "" if result.ratio is None else f"{result.ratio:.2f}x",
                ", ".join(goals),
                ", ".join(used),
            )
        )
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = {0, 5, 6}
    return "\n".join(
        "  ".join(
            text.ljust(width) if column in left else text.rjust(width)
            for column, (text, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


# ---- the command --------------------------------------------------------------------------------


def select(patterns_text: str) -> list[str]:
    """The cases that match, and what they are compared with, in order."""
    patterns = [pattern.strip() for pattern in patterns_text.split(",") if pattern.strip()] or ["*"]
    wanted = {case for case in FLOORS if any(fnmatchcase(case, each) for each in patterns)}
    if not wanted:
        raise BenchError(f"no row matches {patterns_text}; there are: {', '.join(FLOORS)}")
    wanted |= {floor for case in wanted if (floor := FLOORS[case]) is not None}
    return [case for case in FLOORS if case in wanted]


@contextmanager
def opened(
    cases: Sequence[str], options: argparse.Namespace
) -> Iterator[dict[str, Callable[[], Sample]]]:
    """A function for each case of a group, which takes one sample."""
    with (
        tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".bench-replication-") as name,
        ExitStack() as stack,
    ):
        if ALONE in cases:
            senders = Senders(Path(name), stack)
            yield {case: partial(senders.sample, case, options.messages) for case in cases}
        else:
            catching = CatchingUp(Path(name), stack, options.log_size)
            yield {COPY: catching.copy, CATCH_UP: catching.catch_up}


def measure(cases: Sequence[str], options: argparse.Namespace) -> list[Result]:
    samples: dict[str, list[Sample]] = {case: [] for case in cases}
    with opened(cases, options) as takers:
        for case in cases:
            takers[case]()  # what is slow once only
        for number in range(options.rounds):
            for case in cases if number % 2 == 0 else reversed(cases):
                samples[case].append(takers[case]())
    return [
        make_result(case, samples[case], samples[floor] if (floor := FLOORS[case]) else ())
        for case in cases
    ]


def finished(ledger: Ledger, facts: dict[str, Any], commit: str | None) -> dict[str, Result]:
    """Results that need no second measurement; none while the commit is unknown."""
    found: dict[str, Result] = {}
    for entry in ledger.entries() if commit is not None else ():
        same = {"bench": BENCH, "commit": commit, "machine": facts}
        if all(entry.get(key) == value for key, value in same.items()):
            values = {key: entry[key] for key in Result.__dataclass_fields__}
            values["goals"] = [(text, met) for text, met in values["goals"]]
            found[entry["case"]] = Result(**values)
    return found


def run(arguments: Sequence[str], *, stdout: TextIO) -> bool:
    """Measure and print; whether all goals are met."""
    parser = argparse.ArgumentParser(prog=f"bench.{BENCH}")
    parser.add_argument("--rows", default="", help="comma-separated patterns of rows")
    parser.add_argument("--json", type=Path, help="append results to this file and resume from it")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--messages", type=int, default=SEND_COUNT, help="of one sample")
    parser.add_argument("--log-size", type=int, default=LOG_SIZE, help="bytes to catch up")
    options = parser.parse_args(arguments)
    if min(options.rounds, options.messages, options.log_size) < 1:
        raise BenchError("--rounds, --messages and --log-size must be positive")
    chosen = select(options.rows)
    facts = machine_facts()
    commit = current_commit(Path(__file__).parent)
    ledger = Ledger(options.json) if options.json else None
    results = finished(ledger, facts, commit) if ledger else {}
    stdout.write(f"{facts['cpu']}, {facts['cores']} cores, {facts['python']}\n")
    for group in ([ALONE, REPLICATED], [COPY, CATCH_UP]):
        cases = [case for case in group if case in chosen]
        if any(case not in results for case in cases):
            for result in measure(cases, options):
                results[result.case] = result
                if ledger:
                    entry = {"bench": BENCH, "commit": commit, "machine": facts}
                    ledger.append(entry | asdict(result))
        if cases:
            stdout.write(f"\n{format_table([results[case] for case in cases])}\n")
            stdout.flush()
    return all(met for case in chosen for _, met in results[case].goals)


if __name__ == "__main__":
    run_program(BENCH, run)
