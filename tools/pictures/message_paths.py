"""The four pictures of ``docs/design/architecture.md``, and the list of all pictures.

A send, a held pull, a transaction and a consumed message. Files are named relative to
``src/skylark``; ``tests/test_pictures.py`` fails when one is gone. The formatter would give each
argument on a separate line: it is off for the tables.
"""

from __future__ import annotations

from typing import Final

from tools.pictures.drawing import Arrow, Band, Box, Picture

# fmt: off

SEND: Final = Picture(
    name="send",
    title="The way of a send",
    alt=(
        "The way of a send: the producer sends a request; the broker reads all sends that came"
        " together as one run, checks each, makes drafts, and puts all drafts at once; the store"
        " appends records and makes queue and index entries; results go back as replies, at once"
        " or when the messages are durable."
    ),
    bands=[
        Band("Producer", [0]),
        Band("Broker: endpoint", [1, 2]),
        Band("Broker: send service", [3, 4, 5]),
        Band("Store", [6, 7]),
    ],
    boxes=[
        Box("producer", 0, 0, "1  Send",
            ["Choose a queue, build the request, call", "the master of its broker"],
            ["client/producer/queue_selector.py", "client/producer/sender.py"]),
        Box("result", 0, 1, "10  Result",
            ["SendResult, an error, or another attempt", "with another broker"],
            ["client/producer/send_retry.py"]),
        Box("frames", 1, 0, "2  Read frames",
            ["Bytes become frames, frames requests;", "requests keep their order"],
            ["net/inbound.py", "net/dispatch.py"]),
        Box("write", 1, 1, "9  Write",
            ["All replies of the run leave in one write"],
            ["net/outbound.py"]),
        Box("read", 2, 0, "3  Read headers",
            ["All sends that came together from one", "connection are one run"],
            ["broker/send/handlers.py"]),
        Box("replies", 2, 1, "8  Build replies",
            ["A typed result becomes a SEND reply"],
            ["broker/send/handlers.py"]),
        Box("admit", 3, 0, "4  Admit",
            ["Check permissions, topic and queue against", "the current settings"],
            ["broker/send/send_checks.py"]),
        Box("finish", 3, 1, "7  Finish",
            [
                "Count; give the result at once, or when the",
                "disk (SYNC_FLUSH) and the slaves have it",
            ],
            ["broker/send/send_step.py", "broker/send/put_outcome.py"]),
        Box("draft", 4, 0, "5  Draft",
            [
                "Scan the properties once. The policy table",
                "names what they ask for: delay, timer, half,",
                "priority. Usually nothing",
            ],
            ["broker/send/send_step.py", "broker/send/message_policy.py"]),
        Box("put", 5, 0, "6  Put",
            ["Put all drafts of the run at once"],
            ["broker/send/put_pipeline.py", "broker/send/message_writer.py"]),
        Box("append", 6, 0, "6a  Append",
            ["Check limits, then write each record into", "the mapped file of the commit log"],
            ["store/put_message.py", "store/commit_log.py"]),
        Box("dispatch", 6, 1, "6b  Reput",
            [
                "Make queue and index entries; with",
                "SYNC_FLUSH after the flush. From now on",
                "readers see the message; held pulls wake",
            ],
            ["store/reput.py"]),
        Box("flush", 7, 0, "Flush",
            ["One fdatasync for all messages that wait"],
            ["store/flush.py", "store/group_commit.py"]),
    ],
    arrows=[
        Arrow("producer", "frames", "SEND_MESSAGE_V2 (310)"),
        Arrow("frames", "read"),
        Arrow("read", "admit", "SendRequest"),
        Arrow("admit", "draft"),
        Arrow("draft", "put"),
        Arrow("put", "append"),
        Arrow("append", "dispatch"),
        Arrow("append", "flush", "SYNC_FLUSH", dashed=True),
        Arrow("flush", "dispatch", route="gutter", lane=1, dashed=True),
        Arrow("dispatch", "finish", "PutResult"),
        Arrow("finish", "replies", "SendResult"),
        Arrow("replies", "write"),
        Arrow("write", "result", "reply"),
    ],
)

HELD_PULL: Final = Picture(
    name="held-pull",
    title="The way of a held pull",
    alt=(
        "The way of a held pull: the broker checks a pull and reads the queue; if the pull finds"
        " the end of the queue and may wait, it is held; an arriving message that passes the"
        " filter, a check or the deadline wakes it; then the whole request runs again and is"
        " answered."
    ),
    bands=[
        Band("Consumer", [0]),
        Band("Broker: endpoint", [1]),
        Band("Broker: pull service", [2, 3, 4]),
        Band("Store", [5]),
    ],
    boxes=[
        Box("pull", 0, 0, "1  Pull",
            ["Queue, offset and filter; the broker may hold", "the request for 15 s"],
            ["client/consumer/push/pull_loop.py"]),
        Box("pulled", 0, 1, "9  Next pull",
            ["Messages, or none and a new offset;", "the next pull follows at once"],
            ["client/consumer/push/pull_loop.py"]),
        Box("read", 1, 0, "2  Read the request",
            ["Frames become a typed PullRequest"],
            ["net/inbound.py", "broker/pull/handlers.py"]),
        Box("reply", 1, 1, "8  Reply",
            [
                "Records as they stand in the log: few bytes are",
                "copied, more are views of its file",
            ],
            ["broker/pull/handlers.py", "net/write_queue.py"]),
        Box("check", 2, 0, "3  Check",
            ["Group, topic, permissions; find the filter"],
            ["broker/pull/pull_checks.py"]),
        Box("outcome", 2, 1, "7  Result",
            ["Code, next offset, and the records, leased", "until they are written"],
            ["broker/pull/pull_messages.py"]),
        Box("scan", 3, 0, "4  Read the queue",
            [
                "Look at entries of 20 bytes, drop those whose",
                "tag does not match, take log slices",
            ],
            ["broker/pull/pull_messages.py", "store/message_reader.py", "store/queue_scan.py"]),
        Box("again", 3, 1, "6  Run the request again",
            ["In the next turn of the loop, with a result", "in any case; 64 pulls per turn"],
            ["broker/pull/held_pull_runner.py"]),
        Box("hold", 4, 0, "5  Hold",
            ["At the end of the queue: wait without a task,", "in a heap of due times"],
            ["broker/pull/held_pulls.py"]),
        Box("wake", 4, 1, "5b  Wake",
            [
                "Message passes the filter: at once.",
                "It does not: at the next check, every 5 s.",
                "Deadline: in any case",
            ],
            ["broker/pull/held_pulls.py"]),
        Box("arrival", 5, 1, "5a  Message arrives",
            ["Reput reports it, if a pull waits for its queue"],
            ["store/reput.py"]),
        Box("send", 5, 0, "Append",
            ["See the way of a send"],
            ["store/put_message.py"]),
    ],
    arrows=[
        Arrow("pull", "read", "PULL_MESSAGE (11)"),
        Arrow("read", "check"),
        Arrow("check", "scan"),
        Arrow("scan", "hold", "nothing, may wait"),
        Arrow("scan", "outcome", "found", route="gutter"),
        Arrow("hold", "wake", dashed=True),
        Arrow("send", "arrival"),
        Arrow("arrival", "wake"),
        Arrow("wake", "again"),
        Arrow("again", "outcome"),
        Arrow("outcome", "reply"),
        Arrow("reply", "pulled", "reply"),
    ],
)

TRANSACTION: Final = Picture(
    name="transaction",
    title="The way of a transaction",
    alt=(
        "The way of a transaction: the half message is stored under another topic; the producer"
        " runs its local transaction and commits or rolls back; a commit stores the final message"
        " under its own topic, and an op message records the decision. Without a decision the"
        " broker asks the producer, and gives the message up after 15 questions."
    ),
    bands=[
        Band("Producer", [0]),
        Band("Broker: transactions", [1, 2, 3]),
        Band("Broker: after a restart", [4]),
    ],
    boxes=[
        Box("begin", 0, 0, "1  Send the half message",
            ["An ordinary send with TRAN_MSG=true"],
            ["client/producer/transaction_producer.py"]),
        Box("local", 0, 1, "3  Local transaction",
            ["Run it, or say how it ended when asked;", "then commit or roll back"],
            ["client/producer/transaction_producer.py"]),
        Box("half", 1, 0, "2  Store the half message",
            [
                "In RMQ_SYS_TRANS_HALF_TOPIC: consumers do",
                "not see it. Its properties keep topic and queue",
            ],
            ["broker/send/send_step.py", "broker/transaction/half_message.py"]),
        Box("decide", 1, 1, "4  Decide, once",
            [
                "Find the half message in memory or in the log.",
                "The same decision again stores nothing;",
                "the opposite one is refused",
            ],
            [
                "broker/transaction/end_transaction.py",
                "broker/transaction/recent_halves.py",
                "broker/transaction/decisions.py",
            ]),
        Box("ask", 2, 0, "7  Check back",
            [
                "Undecided after transactionTimeOut: put a copy",
                "at the end of the half queue, ask a producer",
                "of the group",
            ],
            ["broker/transaction/check_back.py", "broker/transaction/check_policy.py"]),
        Box("final", 2, 1, "5  Store the final message",
            ["Under its own topic: consumers see it", "(or later, if it has a delay)"],
            ["broker/transaction/half_message.py", "broker/send/put_pipeline.py"]),
        Box("give-up", 3, 0, "8  Give up",
            ["Keep a copy in TRANS_CHECK_MAX_TIME_TOPIC"],
            ["broker/transaction/check_back.py"]),
        Box("op", 3, 1, "6  Record the decision",
            ["In RMQ_SYS_TRANS_OP_HALF_TOPIC: one op", "message for many decisions"],
            ["broker/transaction/transaction_service.py", "broker/transaction/op_messages.py"]),
        Box("recover", 4, 0, "At start",
            ["Read op messages, final messages behind the", "last of them, and the half queue"],
            ["broker/transaction/transaction_recovery.py"]),
        Box("evicted", 4, 1, "Old decisions",
            ["A decision is repeated long after it was made:", "the index has its outcome"],
            ["broker/transaction/evicted.py"]),
    ],
    arrows=[
        Arrow("begin", "half", "SEND_MESSAGE_V2 (310)"),
        Arrow("half", "local", "reply", route="gutter"),
        Arrow("local", "decide", "END_TRANSACTION (37)"),
        Arrow("decide", "final", "commit"),
        Arrow("decide", "op", "rollback", route="side"),
        Arrow("final", "op"),
        Arrow("half", "ask", "no decision", dashed=True),
        Arrow("ask", "local", "asks (39)", route="gutter", lane=1, dashed=True),
        Arrow("ask", "give-up", "asked 15 times", dashed=True),
    ],
)

CONSUMED_MESSAGE: Final = Picture(
    name="consumed-message",
    title="The way of a consumed message",
    alt=(
        "The way of a consumed message: rebalance assigns queues; a pull loop per queue fills the"
        " process queue; the runner hands messages to handlers; an accepted message is removed and"
        " the smallest offset that is not done is saved; a failed one goes back to the broker,"
        " which delivers it again after a delay or keeps it as a dead letter."
    ),
    bands=[
        Band("Client's control loop", [0]),
        Band("Application's loop", [1, 2, 3, 4]),
        Band("Broker", [5, 6]),
    ],
    boxes=[
        Box("assign", 0, 0, "1  Assign queues",
            ["Decide which queues are ours; start and stop", "their pull loops"],
            ["client/consumer/rebalance.py", "client/consumer/rebalance_executor.py"]),
        Box("save", 0, 1, "8  Save offsets",
            ["To the brokers, every 5 s and when a queue", "is given up; pulls carry them as well"],
            ["client/consumer/offset_persistence.py"]),
        Box("pull", 1, 0, "2  Pull",
            ["One loop per queue: flow control, pull, decode,", "filter by tag"],
            ["client/consumer/push/pull_loop.py", "client/core/broker_calls.py"]),
        Box("offsets", 1, 1, "7  Raise the offset",
            ["To the first message that is not done:", "a slow one holds it back"],
            ["client/consumer/offset_table.py"]),
        Box("queue", 2, 0, "3  Process queue",
            ["Messages that were pulled and are not done,", "by offset"],
            ["client/consumer/process_queue.py"]),
        Box("remove", 2, 1, "6  Remove",
            ["Take accepted and returned messages out", "of the process queue"],
            ["client/consumer/process_queue.py"]),
        Box("hand-out", 3, 0, "4  Hand out",
            ["In any order, or one batch at a time per queue"],
            [
                "client/consumer/push/concurrent_runner.py",
                "client/consumer/push/orderly_runner.py",
            ]),
        Box("settle", 3, 1, "5  Settle",
            ["The handler returned, raised, or hangs"],
            [
                "client/consumer/push/concurrent_settlement.py",
                "client/consumer/push/orderly_settlement.py",
            ]),
        Box("handler", 4, 0, "Handler of the application",
            ["A coroutine on the loop, or a function in", "a thread"],
            [
                "client/consumer/push/message_handlers.py",
                "client/consumer/push/handler_threads.py",
            ]),
        Box("send-back", 4, 1, "5a  Send back",
            ["If the broker refuses, publish the message", "to the retry topic instead"],
            ["client/consumer/consumer_send_back.py"]),
        Box("delay", 5, 0, "5c  Retry",
            ["Wait for a growing delay, 10 s to 2 h, then", "move to the topic %RETRY%group"],
            ["broker/delay/delay_levels.py"]),
        Box("decide", 5, 1, "5b  Retry or dead letter",
            ["16 retries by default"],
            ["broker/send/send_back.py", "core/retry_policy.py"]),
        Box("dead", 6, 1, "5d  Dead letter",
            ["Kept in the topic %DLQ%group"],
            ["broker/send/send_back.py"]),
    ],
    arrows=[
        Arrow("assign", "pull"),
        Arrow("pull", "queue"),
        Arrow("queue", "hand-out"),
        Arrow("hand-out", "handler"),
        Arrow("handler", "settle", route="gutter"),
        Arrow("settle", "remove", "accepted"),
        Arrow("remove", "offsets"),
        Arrow("offsets", "save"),
        Arrow("settle", "send-back", "failed"),
        Arrow("send-back", "remove", "taken back", route="side"),
        Arrow("send-back", "decide", "send back (36)"),
        Arrow("decide", "delay"),
        Arrow("decide", "dead", "too often"),
        Arrow("delay", "pull", "delivered again", route="side"),
    ],
)
# fmt: on

PICTURES: Final = (SEND, HELD_PULL, TRANSACTION, CONSUMED_MESSAGE)
