"""``skylark bench`` measures Apache's servers as it does ours, and leaves nothing behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from click.testing import CliRunner

from skylark.cli.main import cli
from tests.interop.client_scenarios.stage import Stage

pytestmark = pytest.mark.interop


def bench(stage: Stage, *arguments: str) -> list[dict[str, Any]]:
    address = stage.site.namesrv.address
    run = CliRunner().invoke(cli, ["--output", "json", "bench", *arguments, "-n", address])
    assert run.exit_code == 0, run.output
    results: list[dict[str, Any]] = json.loads(run.stdout)["results"]
    return results


def test_bench(stage: Stage) -> None:
    (sent,) = bench(stage, "send", stage.topic, "--count", "300", "--size", "200")
    assert (sent["messages"], sent["errors"]) == (300, 0)
    (read,) = bench(stage, "consume", stage.topic, "--count", "300")
    assert (read["messages"], read["errors"]) == (300, 0)
    topic = f"{stage.topic}_e2e"
    both = bench(stage, "e2e", topic, "--create", "--cleanup", "--count", "100", "--rate", "200")
    assert [(row["what"], row["messages"]) for row in both] == [("send", 100), ("e2e", 100)]
    left = CliRunner().invoke(
        cli, ["--output", "json", "topic", "list", "-n", stage.site.namesrv.address]
    )
    assert topic not in left.stdout
