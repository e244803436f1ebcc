"""The picture of ``docs/how-to/pop.md``: queues that belong to members, beside pop.

Left the steps of a consumer that owns queues, right those of one that pops. It names no
files, as those of :mod:`tools.pictures.overviews`.
"""

from __future__ import annotations

from typing import Final

from tools.pictures.drawing import Arrow, Band, Box, Picture

# fmt: off

QUEUE_OWNERSHIP: Final = Picture(
    name="queue-ownership",
    title="Queues that belong to members, and pop",
    alt=(
        "Left, queues that belong to members: each queue has one owner, which pulls it, keeps the"
        " offset, and moves it past what is done; a slow message holds the offset back, and a new"
        " member has to wait for queues. Right, pop: any member takes messages of any queue; the"
        " broker hides them for the invisible time and keeps who has what; each message is"
        " acknowledged; what is not acknowledged is delivered again."
    ),
    bands=[
        Band("Who gets a message", [0]),
        Band("How it gets there", [1]),
        Band("When it is done", [2]),
        Band("When it is slow", [3]),
    ],
    boxes=[
        Box("owner", 0, 0, "pull: the owner of its queue",
            [
                "Members share the queues. With 4 queues",
                "at most 4 members work; order is kept",
            ], []),
        Box("any", 0, 1, "pop: any member",
            [
                "Queues belong to no member. 100 members can",
                "share one queue; there is no order",
            ], []),
        Box("pull", 1, 0, "It reads on from its offset",
            ["and keeps what is not done in a process", "queue"], []),
        Box("pop", 1, 1, "The broker hands it out",
            ["and hides it from the others for the", "invisible time, a minute by default"], []),
        Box("commit", 2, 0, "The offset moves",
            ["past all that is done; one number for a", "queue, saved every 5 s"], []),
        Box("ack", 2, 1, "It is acknowledged",
            ["by its receipt, each message for itself;", "many in one request"], []),
        Box("held", 3, 0, "The offset waits",
            [
                "What follows it is delivered again if the",
                "owner dies; the queue stands still until",
                "another member owns it",
            ], []),
        Box("again", 3, 1, "Only this message comes again",
            [
                "when its time is over, to any member; a",
                "consumer at work renews the time; the others",
                "go on",
            ], []),
    ],
    arrows=[
        Arrow("owner", "pull"),
        Arrow("pull", "commit"),
        Arrow("commit", "held"),
        Arrow("any", "pop"),
        Arrow("pop", "ack"),
        Arrow("ack", "again"),
    ],
)
# fmt: on
