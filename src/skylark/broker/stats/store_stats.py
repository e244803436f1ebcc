"""Statistics of the store: totals, rates and put times, for administrators (rows of request 28).

Code that runs per message adds to the public counters. Once a second the totals are sampled; rates
over the last 10 s, 60 s and 600 s come from these samples, and a rate is missing until its time has
passed. Put times are counted by the millisecond and shown for the last full minute.

Numbers are formatted as in Java, including the gaps: ``"0.5 0.25 "`` is a store that has been up
for one minute, but not for ten. Counterpart of Java's ``StoreStatsService`` and ``BrokerStats``.
"""

from __future__ import annotations

import datetime
import logging
from bisect import bisect_left
from collections import deque
from typing import Final, Literal

from skylark.core.java_text import java_double

logger = logging.getLogger(__name__)

RATE_SECONDS: Final = (10, 60, 600)
MINUTE_MS: Final = 60_000
#: Longer puts count as this long.
PUT_MS_MAX: Final = 10_001

#: (least ms, name) of the parts in which put times are shown.
PUT_TIME_PARTS: Final = (
    (0, "[<=0ms]"),
    (1, "[0~10ms]"),
    (10, "[10~50ms]"),
    (50, "[50~100ms]"),
    (100, "[100~200ms]"),
    (200, "[200~500ms]"),
    (500, "[500ms~1s]"),
    (1_000, "[1~2s]"),
    (2_000, "[2~3s]"),
    (3_000, "[3~4s]"),
    (4_000, "[4~5s]"),
    (5_000, "[5~10s]"),
    (10_000, "[10s~]"),
)
#: Upper ends of the finer parts that percentiles are read from.
PERCENTILE_ENDS: Final = (
    *range(1, 21),
    *range(22, 51, 2),
    *range(55, 101, 5),
    *range(110, 201, 10),
    *range(250, 501, 50),
    *range(600, 1_001, 100),
    *range(2_000, 10_001, 1_000),
)

Rate = Literal["put", "found", "missed", "transferred"]
_RATES: Final[tuple[Rate, ...]] = ("put", "found", "missed", "transferred")


class StoreStats:
    """Counters of one store, and rates made from them."""

    def __init__(self, boot_ms: int) -> None:
        """``boot_ms`` is wall time; all other times come from a clock that never steps."""
        self.put_count = 0
        self.put_size = 0
        self.put_failed_count = 0
        self.found_count = 0  # reads that found messages
        self.missed_count = 0  # reads that did not
        self.transferred_count = 0  # messages read
        self.put_ms_max = 0
        self.get_ms_max = 0  # of reads
        self._boot_ms = boot_ms
        self._put_times = [0] * (PUT_MS_MAX + 1)
        self._put_times_last = self._put_times.copy()  # of the minute before
        self._minute_began_ms: int | None = None
        self._samples: deque[tuple[int, tuple[int, ...]]] = deque(maxlen=RATE_SECONDS[-1] + 1)

    # --- counting ---

    def record_put_time(self, ms: int, count: int = 1) -> None:
        """Count puts that took ``ms`` each."""
        self._put_times[ms if ms < PUT_MS_MAX else PUT_MS_MAX] += count
        if ms > self.put_ms_max:
            self.put_ms_max = ms

    def sample(self, now_ms: int) -> None:
        """Sample the totals; call it once a second."""
        totals = (self.put_count, self.found_count, self.missed_count, self.transferred_count)
        self._samples.append((now_ms, totals))
        if self._minute_began_ms is None:
            self._minute_began_ms = now_ms
        elif now_ms - self._minute_began_ms >= MINUTE_MS:
            self._minute_began_ms = now_ms
            self._put_times_last = self._put_times
            self._put_times = [0] * (PUT_MS_MAX + 1)

    # --- reading ---

    def tps(self, rate: Rate, seconds: int) -> float | None:
        """The rate per second over the last ``seconds``; None before so many have passed."""
        if len(self._samples) <= seconds:
            return None
        column = _RATES.index(rate)
        (first_ms, first), (last_ms, last) = self._samples[-seconds - 1], self._samples[-1]
        return (last[column] - first[column]) * 1000 / max(1, last_ms - first_ms)

    def put_percentile_ms(self, share: float) -> float:
        """The time within which this share of the puts of the last minute ended."""
        counts = [0] * (len(PERCENTILE_ENDS) + 1)
        for ms, count in enumerate(self._put_times_last):
            if count:
                counts[bisect_left(PERCENTILE_ENDS, ms)] += count
        rank, passed, begin = int(sum(counts) * share), 0, 0
        for end, count in zip(PERCENTILE_ENDS, counts, strict=False):
            if rank <= passed + count:
                return begin + ((end - begin) * (rank - passed) / count if count else 0)
            passed, begin = passed + count, end
        return float(PERCENTILE_ENDS[-1])

    def rows(self, now_ms: int) -> dict[str, str]:
        """The store's rows of GET_BROKER_RUNTIME_INFO; ``now_ms`` is wall time."""
        put_count = max(1, self.put_count)  # Java's own protection from dividing by zero
        return {
            "bootTimestamp": str(self._boot_ms),
            "runtime": _duration(now_ms - self._boot_ms),
            "putMessageEntireTimeMax": str(self.put_ms_max),
            "putMessageTimesTotal": str(put_count),
            "putMessageFailedTimes": str(self.put_failed_count),
            "putMessageSizeTotal": str(self.put_size),
            "putMessageDistributeTime": self._put_time_parts(),
            "putMessageAverageSize": java_double(self.put_size / put_count),
            "dispatchMaxBuffer": "0",
            "getMessageEntireTimeMax": str(self.get_ms_max),
            "putTps": self._rates("put"),
            "getFoundTps": self._rates("found"),
            "getMissTps": self._rates("missed"),
            "getTotalTps": " ".join(map(self._total_tps, RATE_SECONDS)),
            "getTransferredTps": self._rates("transferred"),
            "putLatency99": f"{self.put_percentile_ms(0.99):.2f}",
            "putLatency999": f"{self.put_percentile_ms(0.999):.2f}",
        }

    def _rates(self, rate: Rate) -> str:
        rates = (self.tps(rate, seconds) for seconds in RATE_SECONDS)
        return " ".join("" if tps is None else java_double(tps) for tps in rates)

    def _total_tps(self, seconds: int) -> str:
        found, missed = self.tps("found", seconds), self.tps("missed", seconds)
        return java_double((found or 0.0) + (missed or 0.0))

    def _put_time_parts(self) -> str:
        least = [ms for ms, _ in PUT_TIME_PARTS]
        ends = [*least[1:], PUT_MS_MAX + 1]
        counts = (
            sum(self._put_times_last[begin:end]) for begin, end in zip(least, ends, strict=True)
        )
        parts = zip(PUT_TIME_PARTS, counts, strict=True)
        return "".join(f"{name}:{count} " for (_, name), count in parts)


class DayTotals:
    """Messages put and got until the last midnight, and until the one before."""

    def __init__(self) -> None:
        self.yesterday_morning = self.today_morning = (0, 0)

    def morning(self, put_count: int, get_count: int) -> None:
        """Take the totals of a midnight."""
        (put_before, got_before), now = self.today_morning, (put_count, get_count)
        self.yesterday_morning, self.today_morning = self.today_morning, now
        logger.info(
            "messages of yesterday: %d put, %d got", put_count - put_before, get_count - got_before
        )

    def rows(self, put_count: int, get_count: int) -> dict[str, str]:
        """The rows of GET_BROKER_RUNTIME_INFO that begin with msgPut and msgGet."""
        times = {
            "YesterdayMorning": self.yesterday_morning,
            "TodayMorning": self.today_morning,
            "TodayNow": (put_count, get_count),
        }
        return {
            f"msg{kind}Total{time}": str(counts[column])
            for column, kind in enumerate(("Put", "Get"))
            for time, counts in times.items()
        }


def next_morning_ms(now_ms: int, zone: datetime.tzinfo | None = None) -> int:
    """The next midnight after a time, in ``zone`` or that of this machine."""
    today = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC).astimezone(zone).date()
    midnight = datetime.datetime.combine(
        today + datetime.timedelta(days=1), datetime.time(), tzinfo=zone
    )
    return round(midnight.timestamp() * 1000)


def _duration(ms: int) -> str:
    minutes, seconds = divmod(max(0, ms) // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    return f"[ {days:,} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
