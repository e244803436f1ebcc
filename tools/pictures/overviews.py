"""Pictures for people who use Skylark: what the parts are and what becomes of a message.

They name no files, unlike those of :mod:`tools.pictures.message_paths`.
"""

from __future__ import annotations

from typing import Final

from tools.pictures.drawing import Arrow, Band, Box, Picture
from tools.pictures.queue_ownership import QUEUE_OWNERSHIP

# fmt: off

CLUSTER: Final = Picture(
    name="cluster",
    title="A cluster",
    alt="Producers and consumers, name server, brokers, slave and Spark",
    bands=[Band("Your programs", [0]), Band("skylark up", [1, 2, 3])],
    boxes=[
        Box("programs", 0, 0, "Producers and consumers",
            ["Python with asyncio or threads,", "Java and C++ clients, mqadmin"], []),
        Box("spark", 0, 1, "Spark",
            ["Topics as tables and streams,", "written exactly once"], []),
        Box("namesrv", 1, 0, "Name server",
            ["Knows which broker has which topic"], []),
        Box("broker-a", 2, 0, "Broker a, master",
            ["Stores messages: log, queues, index"], []),
        Box("broker-b", 2, 1, "Broker b, master",
            ["Each topic has queues on several brokers"], []),
        Box("slave", 3, 0, "Broker a, slave",
            ["A copy; serves reads while its master is away"], []),
    ],
    arrows=[
        Arrow("programs", "namesrv", "ask for routes"),
        Arrow("programs", "broker-a", "send, pull", route="side"),
        Arrow("spark", "broker-b", "read, write"),
        Arrow("broker-a", "namesrv", "register"),
        Arrow("broker-a", "slave", "replicate"),
    ],
)

RETRY: Final = Picture(
    name="retry",
    title="From a failure to a dead letter",
    alt=(
        "From a failure to a dead letter: a handler that returns moves the offset on; one that"
        " raises gets the message again after growing delays; after too many retries it is a"
        " dead letter, which dlq redrive --to group sends to the group again."
    ),
    bands=[Band("Consumer group", [0]), Band("Broker", [1, 2])],
    boxes=[
        Box("handler", 0, 0, "Handler", ["Gets the message"], []),
        Box("done", 0, 1, "Done", ["The offset of the group moves on"], []),
        Box("retry", 1, 0, "Retry",
            ["In %RETRY%group, after 10 s, 30 s, 1 min", "and so on to 2 h: 16 times by default"],
            []),
        Box("dead", 1, 1, "Dead letter",
            ["In %DLQ%group: kept, and out of the way", "of the others"], []),
        Box("redrive", 2, 1, "Redrive",
            ["After the fix: skylark dlq redrive --to", "group sends it to this group only"],
            []),
    ],
    arrows=[
        Arrow("handler", "done"),
        Arrow("handler", "retry", "raises"),
        Arrow("retry", "handler", "again, later", route="side"),
        Arrow("retry", "dead"),
        Arrow("dead", "redrive"),
        Arrow("redrive", "retry", route="gutter", lane=1, dashed=True),
    ],
)

REPLICATION: Final = Picture(
    name="replication",
    title="The way of a message to a slave",
    alt=(
        "The way of a message to a slave: the master appends it and sends the bytes of its log; the"
        " slave writes the same bytes and reports its offset; with SYNC_MASTER the acknowledgement"
        " waits for that report."
    ),
    bands=[Band("Producer", [0]), Band("Master", [1, 2]), Band("Slave", [3])],
    boxes=[
        Box("send", 0, 0, "1  Send", ["To the master only"], []),
        Box("acknowledged", 0, 1, "7  Acknowledged", ["SEND_OK"], []),
        Box("append", 1, 0, "2  Append",
            ["To the commit log; readers see it at once"], []),
        Box("wait", 1, 1, "6  Wait for slaves",
            ["SYNC_MASTER: for inSyncReplicas"], []),
        Box("push", 2, 0, "3  Send the log",
            ["Its bytes, in order, on the HA port"], []),
        Box("reported", 2, 1, "5  Read the offset",
            ["What the slave has, it has for good"], []),
        Box("copy", 3, 0, "4  Write the same bytes",
            ["At the same offsets; then queues and index"], []),
        Box("report", 3, 1, "4a  Report",
            ["The end of its own log"], []),
    ],
    arrows=[
        Arrow("send", "append"),
        Arrow("append", "push"),
        Arrow("append", "wait", dashed=True),
        Arrow("push", "copy"),
        Arrow("copy", "report"),
        Arrow("report", "reported"),
        Arrow("reported", "wait"),
        Arrow("wait", "acknowledged"),
    ],
)

EXACTLY_ONCE: Final = Picture(
    name="exactly-once",
    title="Spark writes a batch exactly once",
    alt=(
        "Spark writes a batch exactly once: tasks write half messages, which nobody sees; when all"
        " are done, the driver writes one record to the decision log; then the half messages are"
        " committed, or a resolver commits them when the broker asks."
    ),
    bands=[Band("Spark: driver", [0]), Band("Spark: tasks", [1]), Band("Broker", [2])],
    boxes=[
        Box("begin", 0, 0, "1  Begin a batch",
            ["Its number is in Spark's checkpoint"], []),
        Box("decide", 0, 1, "3  Decide",
            ["All tasks are done: one record in the", "decision log. The batch is written"], []),
        Box("write", 1, 0, "2  Write half messages",
            ["Consumers do not see them yet"], []),
        Box("commit", 1, 1, "4  Commit",
            ["The half messages become visible"], []),
        Box("half", 2, 0, "Half messages",
            ["Those of failed attempts are rolled back"], []),
        Box("resolver", 2, 1, "Resolver",
            ["Answers from the decision log if nobody", "commits: the driver may have died"], []),
    ],
    arrows=[
        Arrow("begin", "write"),
        Arrow("write", "half"),
        Arrow("write", "decide", route="gutter"),
        Arrow("decide", "commit"),
        Arrow("commit", "half", route="gutter", lane=1),
        Arrow("half", "resolver", dashed=True),
    ],
)
# fmt: on

OVERVIEWS: Final = (CLUSTER, RETRY, REPLICATION, EXACTLY_ONCE, QUEUE_OWNERSHIP)
