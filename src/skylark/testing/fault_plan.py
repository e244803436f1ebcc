"""The fault plan: decides by seed all faults of a test, so that a failure can be replayed.

A *fault point* is a name that a wrapper visits: ``files.sync``, ``memory.deliver``,
``proxy.to_server``, ``request.310``. At each visit the wrapper calls :meth:`FaultPlan.draw`, which
returns the fault to carry out. Rules define faults at scripted positions, or by chance::

    plan = FaultPlan(seed=7)
    plan.at("files.sync", nth=3, error=errno.EIO)
    plan.chance("proxy.to_client", 0.01, action=FaultAction.CUT, limit=5)

* A rule's point may end in ``*`` and then matches every point with that prefix. The first rule
  that fires decides, in the order in which rules were added.
* Each name has a separate random stream, derived from the seed: one more visit to one point does
  not change what happens at another.
* ``drawn`` counts what the plan decided, ``hits`` what took effect, as the wrapper reports it (a
  cut with nothing in flight is drawn, but is no hit). A run without hits proves nothing.
* ``str(plan)`` is one line with the seed, the rules and the hits: print it with a failure.

Wrappers: :mod:`skylark.testing.faulty_file_system`, :mod:`skylark.testing.memory_net`,
:mod:`skylark.testing.tcp_proxy`, and :mod:`skylark.testing.request_faults` inside a server. They
and several threads may share a plan.
"""

from __future__ import annotations

import enum
import errno
import random
import threading
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Self

LOG_SIZE_MAX = 10_000


class FaultAction(enum.Enum):
    """What may go wrong. Each wrapper's docstring lists the actions it knows."""

    NONE = "none"
    ERROR = "error"  # fail with the errno or response code in ``Fault.error``
    DELAY = "delay"  # go on after ``Fault.delay_ms``
    HANG = "hang"  # block until the gate opens
    DROP = "drop"  # do nothing and say nothing
    DUPLICATE = "duplicate"  # do it twice
    SPLIT = "split"  # deliver in two pieces, cut at a drawn position
    HALVE = "halve"  # deliver the first half of what is in flight, then cut
    STALL = "stall"  # deliver nothing more in this direction until ``resume``
    CLOSE = "close"  # end the connection in order (FIN)
    CUT = "cut"  # end the connection at once (RST)


class Gate:
    """Blocks a hanging call until the test opens it. Starts closed."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._reached = threading.Event()

    def open(self) -> None:
        """Let all calls pass, now and later."""
        self._opened.set()

    def pass_through(self) -> None:
        """Block the calling thread until the gate is open."""
        self._reached.set()
        self._opened.wait()

    def wait_reached(self, timeout_s: float = 10.0) -> bool:
        """Wait until a call blocks at the gate; False after the timeout."""
        return self._reached.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class Fault:
    """One decision. ``error`` is an errno for files and a response code for requests."""

    action: FaultAction
    error: int = 0
    delay_ms: int = 0
    gate: Gate | None = None

    def __str__(self) -> str:
        if self.action is FaultAction.ERROR:
            return f"error({errno.errorcode.get(self.error, self.error)})"
        if self.action is FaultAction.DELAY:
            return f"delay({self.delay_ms} ms)"
        return f"{self.action.value}"


NO_FAULT = Fault(FaultAction.NONE)


@dataclass(frozen=True, slots=True)
class Decision:
    """One line of the log: the ``visit``-th visit to ``point`` drew ``fault``."""

    point: str
    visit: int
    fault: Fault
    detail: str = ""

    def __str__(self) -> str:
        where = f" {self.detail}" if self.detail else ""
        return f"{self.point}#{self.visit}:{self.fault}{where}"


@dataclass(slots=True)
class _Rule:
    point: str
    fault: Fault
    positions: frozenset[int] = frozenset()  # visits counted by this rule, from 1
    probability: float = 0.0
    limit: int | None = None
    visits: int = 0
    fired: int = 0

    def matches(self, point: str) -> bool:
        if self.point.endswith("*"):
            return point.startswith(self.point[:-1])
        return point == self.point

    def fires(self, stream: random.Random) -> bool:
        self.visits += 1
        if self.positions:
            hit = self.visits in self.positions
        else:
            hit = stream.random() < self.probability
        if not hit or (self.limit is not None and self.fired >= self.limit):
            return False
        self.fired += 1
        return True

    def __str__(self) -> str:
        if self.positions:
            when = "#" + ",".join(map(str, sorted(self.positions)))
        else:
            when = f"~{self.probability:g}"
        limit = "" if self.limit is None else f"/{self.limit}"
        return f"{self.point}{when}{limit}:{self.fault}"


@dataclass
class FaultPlan:
    """All faults of one run, decided by ``seed`` and the rules added to it."""

    seed: int
    drawn: Counter[str] = field(default_factory=Counter, init=False)
    hits: Counter[str] = field(default_factory=Counter, init=False)
    visits: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self._rules: list[_Rule] = []
        self._streams: dict[str, random.Random] = {}
        self._log: deque[Decision] = deque(maxlen=LOG_SIZE_MAX)
        self._lock = threading.Lock()

    def at(
        self,
        point: str,
        *,
        nth: int | Iterable[int] = 1,
        action: FaultAction | None = None,
        error: int = 0,
        delay_ms: int = 0,
        gate: Gate | None = None,
    ) -> Self:
        """Strike at the ``nth`` visit (or visits), counted from 1 since this rule was added."""
        positions = frozenset([nth] if isinstance(nth, int) else nth)
        if not positions or min(positions) < 1:
            raise ValueError("visits are counted from 1")
        self._add(_Rule(point, _fault(action, error, delay_ms, gate), positions=positions))
        return self

    def chance(
        self,
        point: str,
        probability: float,
        *,
        limit: int | None = None,
        action: FaultAction | None = None,
        error: int = 0,
        delay_ms: int = 0,
        gate: Gate | None = None,
    ) -> Self:
        """Strike with this probability at every visit, at most ``limit`` times."""
        if not 0.0 <= probability <= 1.0:
            raise ValueError(f"{probability} is not a probability")
        fault = _fault(action, error, delay_ms, gate)
        self._add(_Rule(point, fault, probability=probability, limit=limit))
        return self

    def clear(self) -> None:
        """Drop all rules: from now on nothing fails. Counters, log and streams stay."""
        with self._lock:
            self._rules.clear()

    def draw(self, point: str, detail: str = "") -> Fault:
        """Visit ``point``; the caller carries out the returned fault and counts it."""
        with self._lock:
            self.visits[point] += 1
            chosen = NO_FAULT
            for rule in self._rules:
                # every matching rule counts the visit, so that its positions keep their meaning
                if rule.matches(point) and rule.fires(self._stream(point)) and chosen is NO_FAULT:
                    chosen = rule.fault
            if chosen is not NO_FAULT:
                self.drawn[f"{point}/{chosen.action.value}"] += 1
                self._log.append(Decision(point, self.visits[point], chosen, detail))
        return chosen

    def hit(self, point: str, action: FaultAction) -> None:
        """Count a fault that had an effect."""
        with self._lock:
            self.hits[f"{point}/{action.value}"] += 1

    def note(self, point: str, action: FaultAction, detail: str) -> None:
        """Log a decision that a wrapper made itself, from a stream of this plan."""
        with self._lock:
            self._log.append(Decision(point, self.visits[point], Fault(action), detail))

    def stream(self, name: str) -> random.Random:
        """The random stream of ``name``: depends only on the seed and the name."""
        with self._lock:
            return self._stream(name)

    @property
    def hit_count(self) -> int:
        """How many faults had an effect so far."""
        return self.hits.total()

    @property
    def log(self) -> list[Decision]:
        """The decisions in order, the last LOG_SIZE_MAX of them."""
        with self._lock:
            return list(self._log)

    def replay_line(self) -> str:
        """One line with the seed, the rules and the hits."""
        with self._lock:
            rules = " ".join(map(str, self._rules)) or "none"
            hits = " ".join(f"{name}={count}" for name, count in sorted(self.hits.items()))
        return f"FaultPlan(seed={self.seed}) rules: {rules}; hits: {hits or 'none'}"

    def __str__(self) -> str:
        return self.replay_line()

    def _add(self, rule: _Rule) -> None:
        with self._lock:
            self._rules.append(rule)

    def _stream(self, name: str) -> random.Random:
        stream = self._streams.get(name)
        if stream is None:
            # a string seed is hashed by SHA-512: the same on every machine and in every process
            stream = self._streams[name] = random.Random(f"{self.seed}/{name}")
        return stream


def _fault(action: FaultAction | None, error: int, delay_ms: int, gate: Gate | None) -> Fault:
    """Name the action after the argument that only one action takes."""
    if action is None:
        if error:
            action = FaultAction.ERROR
        elif delay_ms:
            action = FaultAction.DELAY
        elif gate is not None:
            action = FaultAction.HANG
        else:
            raise ValueError("give an action, error, delay_ms or gate")
    if (action is FaultAction.HANG) != (gate is not None):
        raise ValueError("a gate and the action HANG belong together")
    return Fault(action, error, delay_ms, gate)
