"""Clients whose servers and connections fail, short form; ``make crash PART=client`` runs the long
one. What must hold is in :mod:`tests.support.client_storm`.
"""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skylark.client.core.client_options import ClientOptions
from tests.support.client_storm import run_storm
from tests.support.client_work import Group, Shape


@pytest.mark.parametrize("seed", [1, 9, 17])
def test_2000_messages_in_a_storm(seed: int, tmp_path: Path) -> None:
    result = run_storm(seed, count=2_000, trouble_count=5, folder=tmp_path)
    print(f"\n{result}")
    assert result.hit_count > 0, "no trouble met traffic: the run does not count"


EARLY_MESSAGE = r"""
import os, threading
os.write(1, b"0 0 0 7\njoined\n0 1 0 8\n")
threading.Event().wait()
"""


async def test_what_a_killed_member_got_before_it_reported_its_queues_counts() -> None:
    options = ClientOptions(namesrv="127.0.0.1:9876")
    shape = Shape.of(1, random.Random(1), 5)
    with ThreadPoolExecutor(1) as threads:
        group = Group(options, shape, 10, threads)
        process = await group.start_process(("-c", EARLY_MESSAGE))
        assert await group.kill_process(process)
    assert group.places == {(0, 0): 7, (0, 1): 8}
    assert (group.distinct, group.repeated) == (2, 0)
