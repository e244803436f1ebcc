"""Recorded conversations with a real broker (5.5.0), held again with ours.

Every request that clients and tools sent to the broker in the golden files is sent to ours: whole
runs of the recorded broker, in order, in virtual time that stands at the recorded time. Settings
and first topics are those of the recorded broker, so the state that each scenario finds is built up
by those before it. What an answer must have in common with the recorded one, and the list of
differences with their reasons: :mod:`tests.golden.replay.comparison`.

What the broker asks of its clients, or tells them, is compared too. What is sent to name servers:
``test_namesrv_replay``.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from skylark.broker.app import Broker
from skylark.broker.config import load_broker_config
from skylark.namesrv.app import NameServer
from skylark.namesrv.config import NamesrvConfig
from skylark.testing.memory_net import MemoryNetwork
from skylark.testing.virtual_clock import VirtualClock
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.codes import RequestCode
from tests.golden.replay.comparison import ANSWERS, asked_facts, difference, problems
from tests.golden.replay.player import Exchange, Player
from tests.golden.replay.recording import FRAMES, RUNS, WITHOUT_BROKER, Run, Scenario
from tests.unit.broker.stored import in_place

NAME_SERVER: Final = ("127.0.0.3", 29876)
PORT: Final = 20911
#: The settings of the recorded broker.
RECORDED: Final = {
    "brokerClusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerIP1": "127.0.0.2",
    "brokerIP2": "127.0.0.2",
    "bindAddress": "127.0.0.1",
    "listenPort": str(PORT),
    "namesrvAddr": "127.0.0.3:29876",
    "autoCreateTopicEnable": "true",
    "enablePropertyFilter": "true",
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "60000",
    "maxHashSlotNum": "500",
    "maxIndexNum": "2000",
    "mappedFileSizeTimerLog": "1048576",
    "transactionCheckInterval": "3000",
    "transactionTimeOut": "2000",
    "fileReservedTime": "720",
    "diskMaxUsedSpaceRatio": "95",
    "storePathRootDir": "store",
    "storePathCommitLog": "store/commitlog",
}
FIRST_TOPICS: Final = {"FrameA": 2, "FrameOrder": 2, "FrameTx": 1}


async def replayed(run: Run, root: Path, monkeypatch: pytest.MonkeyPatch) -> Player:
    monkeypatch.chdir(root)  # the recorded paths are relative
    clock = VirtualClock(run.start_ms())
    network = MemoryNetwork(clock=clock)
    host, port = NAME_SERVER
    name_server = NameServer(
        NamesrvConfig(bind_address=host, listen_port=port), network=network, clock=clock
    )
    given = {**RECORDED, **run.settings}
    broker = Broker(
        load_broker_config(given), network=network, clock=clock, in_thread=in_place, given=given
    )
    await name_server.start()
    await broker.start()
    clock.on_advance(broker.clock_advanced)
    store = broker.features.store
    # The first pop of a queue waits for the disk: virtual time waits with it.
    end_hold = clock.hold_while(lambda: store.disk_wait_count > 0)
    try:
        for name, count in FIRST_TOPICS.items():
            config = TopicConfig(topic_name=name, read_queue_nums=count, write_queue_nums=count)
            broker.features.topics.table.update(config)
        player = Player(run, clock, network, PORT)
        await player.play()
    finally:
        end_hold()
        await broker.stop()
        await name_server.stop()
    return player


def test_all_recordings_are_played() -> None:
    played = [name for run in RUNS for name in run.scenarios]
    assert len(played) == len(set(played)) == 45
    assert {path.stem for path in FRAMES.glob("*.jsonl")} == {*played, *WITHOUT_BROKER}
    for name in WITHOUT_BROKER:
        assert not Scenario(name).frames
    counts = Counter(frame.command.code for name in played for frame in Scenario(name).requests)
    assert counts.total() == 592
    assert len(counts) == 48


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
async def test_our_broker_behaves_as_the_recorded_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    player = await replayed(run, tmp_path, monkeypatch)
    assert len(player.exchanges) == sum(len(Scenario(name).requests) for name in run.scenarios)
    assert sum(each.recorded is not None for each in player.exchanges) == run.answer_count
    found = [(title(each), problems(each, difference(each))) for each in player.exchanges]
    assert [each for each in found if each[1]] == []
    assert player.unexpected_answers() == []
    for connection, asked in player.asked.items():
        recorded = map(asked_facts, player.recorded_asked[connection])
        assert list(map(asked_facts, asked)) == [each for each in recorded if each is not None]


async def test_what_happens_besides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each difference of the first run is needed, and the other checks go their way."""
    player = await replayed(RUNS[0], tmp_path, monkeypatch)
    answered = [each for each in player.exchanges if each.recorded is not None]
    used = [(each, known) for each in answered if (known := difference(each))]
    assert len(used) == 3
    needed = [known for exchange, known in used if problems(exchange, None)]
    assert all(each in needed for each in ANSWERS if each.scenario in RUNS[0].scenarios)
    recorded = [each for commands in player.recorded_asked.values() for each in commands]
    assert sum(asked_facts(each) is None for each in recorded) == 1
    checks = [
        (each.ext or {})["msgId"][-4:]
        for asked in player.asked.values()
        for each in asked
        if each.code == RequestCode.CHECK_TRANSACTION_STATE
    ]
    assert checks == ["0002", "0003"]


def title(exchange: Exchange) -> str:
    request = exchange.request
    return f"{exchange.scenario}: {request.code} (opaque {request.opaque}) {request.ext}"
