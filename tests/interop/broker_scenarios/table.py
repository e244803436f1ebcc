"""Which real client shows what against our broker, and why not where it does not.

One row per scenario, one column per client. A cell is either shown by the test ``test_KEY`` of
``tests/interop/test_broker*.py``, run with that client, or has a reason in ``without``. Tests take
their clients from here, so the table cannot say more than what runs. A cell may also have a note.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from tests.interop.cpp import VERSION as WHEEL
from tests.interop.toolchain import CURRENT, OLD_CLIENT

JAVA_5: Final = "java-5"
JAVA_4: Final = "java-4"
CPP: Final = "cpp"

#: The columns, with the names that documents use.
CLIENTS: Final = {
    JAVA_5: f"Java {CURRENT}",
    JAVA_4: f"Java {OLD_CLIENT}",
    CPP: f"C++ (wheel rocketmq {WHEEL})",
}

_NOT_IN_C_API: Final = "not in the C interface, which the wheel binds"


@dataclass(frozen=True, slots=True)
class Scenario:
    """One row: the key names the test, the title is for readers."""

    key: str
    title: str
    without: Mapping[str, str] = field(default_factory=dict)  # client -> why it is not shown
    notes: Mapping[str, str] = field(default_factory=dict)  # client -> what is shown less

    @property
    def clients(self) -> list[str]:
        """The clients that show it."""
        return [client for client in CLIENTS if client not in self.without]


SCENARIOS: Final = (
    # Sending
    Scenario("sync_send", "Synchronous send"),
    Scenario("async_send", "Asynchronous send"),
    Scenario("oneway_send", "One-way send"),
    Scenario("batch_send", "Batch send", {CPP: "the library loses messages of a batch"}),
    Scenario("compressed_send", "Bodies that the client compresses"),
    Scenario("send_creates_topic", "First send to a topic creates it"),
    Scenario("fast_port", "Sends by the fast port (vipChannelEnabled)", {CPP: _NOT_IN_C_API}),
    # Consuming
    Scenario("concurrent_clustering", "Push, concurrent, clustering: a group of two"),
    Scenario("orderly_clustering", "Push, orderly, clustering: a group of two"),
    Scenario("concurrent_broadcasting", "Push, concurrent, broadcasting"),
    Scenario(
        "orderly_broadcasting",
        "Push, orderly, broadcasting",
        notes={
            JAVA_4: "one consumer per group: the client locks its queues although it broadcasts",
            CPP: "one consumer per group: the library locks its queues although it broadcasts",
        },
    ),
    Scenario("consumer_goes_on", "A consumer goes on where its group had stopped"),
    Scenario("lite_pull", "Lite pull, queues shared in the group", {CPP: _NOT_IN_C_API}),
    Scenario("lite_pull_assigned", "Lite pull, queues taken and seeked", {CPP: _NOT_IN_C_API}),
    Scenario("plain_pull", "Pull, queue by queue"),
    # Filters
    Scenario("tag_filter", "Filter by tags"),
    Scenario("sql_filter", "Filter by SQL92, and refusal of bad SQL", {CPP: _NOT_IN_C_API}),
    # Delay
    Scenario("delay_levels", "Delay levels"),
    Scenario(
        "timer_messages",
        "Messages for any time, and recall",
        {JAVA_4: "clients have it since 5.0", CPP: "clients have it since 5.0"},
    ),
    # Transactions
    Scenario(
        "transaction_answers", "Transactions: commit, rollback, unknown", {CPP: _NOT_IN_C_API}
    ),
    Scenario("transaction_checks", "Transactions decided by check-back", {CPP: _NOT_IN_C_API}),
    # Failed consumption
    Scenario("retry", "Failed messages come again"),
    Scenario("dead_letters", "Messages that always fail end as dead letters"),
    Scenario(
        "orderly_dead_letters",
        "The same, consumed in order",
        {CPP: "the library retries in order without end and sends nothing back"},
    ),
    # Request and reply
    Scenario("request_reply", "Request and reply", {CPP: _NOT_IN_C_API}),
    # Traces
    Scenario(
        "message_trace", "Traces of sent and consumed messages", {CPP: "the library has none"}
    ),
    # Groups that change
    Scenario("consumer_joins_and_leaves", "Rebalance when a consumer joins and leaves"),
    Scenario("consumer_is_killed", "Rebalance when a consumer is killed"),
    # Headers
    Scenario(
        "binary_headers",
        "Binary headers (rocketmq.serialize.type=ROCKETMQ)",
        {CPP: "the library writes JSON headers only"},
    ),
    # Restart
    Scenario("restart", "Broker stopped and started while sending and consuming"),
    Scenario("crash", "Broker killed and started while sending and consuming"),
)

SCENARIO_BY_KEY: Final = {scenario.key: scenario for scenario in SCENARIOS}
