"""The port of a broker in a process of its own, which a test can keep from the processor.

``python -m tests.support.starved_broker`` prints ``{"port": ..}`` and serves until its standard
input ends. Then it prints how many requests it has refused because they waited, and for how long
it has waited for a processor. It stores nothing, so nothing else can hold it up.
"""

from __future__ import annotations

import asyncio
import json
import sys

from skylark.broker.config import load_broker_config
from skylark.broker.live_settings import LiveSettings
from skylark.broker.overload.overload_guard import LoopWatch, OverloadGuard, Reason
from skylark.broker.overload.processor_wait import processor_wait
from skylark.core.clock import LoopClock
from skylark.net.dispatch import Dispatcher
from skylark.net.server import RemotingServer
from skylark.net.transport import TcpNetwork
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command, response_to

WORK_S = 0.000_5  # processor time of each request


async def main() -> None:
    clock = LoopClock()
    live = LiveSettings(load_broker_config({"storePathRootDir": "unused"}), now_ms=0)
    watch = LoopWatch(clock, processor_wait=processor_wait(clock))
    guard = OverloadGuard(live, watch, clock, held_size=lambda: 0, pool_is_empty=lambda: False)
    dispatcher = Dispatcher([guard])

    def work(_connection: object, request: Command) -> Command:
        done_at = clock.thread_time() + WORK_S
        while clock.thread_time() < done_at:
            pass
        return response_to(request, 0)

    dispatcher.add_hot(RequestCode.SEND_MESSAGE_V2, work)
    server = RemotingServer(dispatcher, TcpNetwork(), clock, watch=watch)
    await server.start("127.0.0.1", 0)
    print(json.dumps({"port": server.address[1]}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()
    found = {"refused": guard.refused_counts[Reason.WAITED], "waited_s": watch.excused_s}
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
