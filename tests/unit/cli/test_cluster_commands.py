"""``skylark cluster``, as a user sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from skylark.admin.cluster_stats import ReplicaState, ReplicationReport, SlaveLink
from skylark.admin.errors import ServerFailure
from skylark.cli import cluster_commands as cluster_command
from skylark.cli.main import cli
from tests.support.up import cluster
from tests.unit.cli.shell import NOWHERE, Shell

MASTER = ReplicaState(
    cluster="c",
    broker="broker-a",
    id=0,
    role="MASTER",
    address="10.0.0.1:10911",
    version="V5_5_0",
    in_tps=1.5,
    out_tps=2.5,
    log_end=1000,
    lag_bytes=100,
    slaves=1,
    in_sync=1,
    links=(SlaveLink(address="10.0.0.2:40000", lag_bytes=100, in_sync=True, bytes_per_second=7),),
)
SLAVE = ReplicaState(
    cluster="c",
    broker="broker-a",
    id=1,
    role="SLAVE",
    address="10.0.0.2:10911",
    log_end=900,
    lag_bytes=100,
    phase="DIVERGED",
    diverged="this log ends at 900",
)


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> ReplicationReport:
    made = ReplicationReport(
        brokers=(MASTER, SLAVE),
        failures=(ServerFailure(server="broker-b", address="10.0.0.3:1", problem="is away"),),
    )
    monkeypatch.setattr(cluster_command, "_ask", lambda *_: made)
    return made


@pytest.mark.usefixtures("report")
def test_a_slave_that_has_diverged_is_shown_with_the_choices() -> None:
    result = invoke("cluster", "status")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:4] == ["CLUSTER", "BROKER", "ID", "ROLE"]
    assert lines[2].endswith("DIVERGED  this log ends at 900")
    assert "broker-a 1 has diverged. It may have the only copy" in result.stderr
    assert "haTruncateAhead=true" in result.stderr
    assert "broker-b at 10.0.0.3:1: is away" in result.stderr


@pytest.mark.usefixtures("report")
def test_json_has_the_slaves_of_each_master() -> None:
    rows = json.loads(invoke("--output", "json", "cluster", "status").stdout)
    assert rows[0]["links"] == [
        {"address": "10.0.0.2:40000", "lag_bytes": 100, "in_sync": True, "bytes_per_second": 7}
    ]
    assert (rows[1]["diverged"], rows[1]["slaves"]) == ("this log ends at 900", None)
    rows = json.loads(invoke("--output", "json", "cluster", "list").stdout)
    assert rows[0] == {
        "cluster": "c",
        "broker": "broker-a",
        "id": 0,
        "role": "MASTER",
        "address": "10.0.0.1:10911",
        "version": "V5_5_0",
        "in_tps": 1.5,
        "out_tps": 2.5,
    }


def test_a_running_cluster_with_replicas(tmp_path: Path) -> None:
    with cluster(tmp_path, "--replicas", "1", "--sync") as namesrv:
        rows = json.loads(invoke("--output", "json", "cluster", "status", "-n", namesrv).stdout)
        assert [(row["id"], row["role"]) for row in rows] == [(0, "MASTER"), (1, "SLAVE")]
        assert [row["version"] for row in rows] == ["V5_5_0", "V5_5_0"]
        assert rows[1]["diverged"] is None
        result = invoke("cluster", "list", "-n", namesrv, "--cluster", "other")
        assert result.exit_code == 4


def test_nobody_answers() -> None:
    assert invoke("cluster", "list", "-n", "127.0.0.1:1").exit_code == 3


# ---- taking a broker out -------------------------------------------------------------------------


def test_producers_are_kept_from_a_broker_and_let_back(shell: Shell) -> None:
    shell.create("Drained")

    def permission() -> str:
        (broker,) = shell.json("topic", "route", "Drained")
        return str(broker["perm"])

    wiped = shell.json("cluster", "wipe-write-perm", "broker-a")
    try:
        assert [row["name_server"] for row in wiped] == [shell.namesrv]
        assert wiped[0]["topics"] > 0
        assert permission() == "r"
    finally:
        added = shell.json("cluster", "add-write-perm", "broker-a")
    assert added == wiped
    assert permission() == "rw"
    error = shell.error("cluster", "wipe-write-perm", "nobody", code=4)
    assert "nobody" in error


# ---- settings ------------------------------------------------------------------------------------


def test_settings_are_shown_and_changed(shell: Shell) -> None:
    key = "fileReservedTime"
    assert shell.json("cluster", "config", "get", key) == [
        {"server": "broker-a", "key": key, "value": "72"}
    ]
    everything = shell.json("cluster", "config", "get")
    assert len(everything) > 100
    change = ("cluster", "config", "set", f"{key}=48", "--broker", "broker-a")
    refused = shell.run(*change, code=1, answer="n\n")
    assert refused.stdout.splitlines()[1].split() == ["broker-a", key, "72", "48"]
    assert shell.json(*change, "--yes") == [
        {"server": "broker-a", "key": key, "old": "72", "new": "48"}
    ]
    assert shell.json("cluster", "config", "get", key)[0]["value"] == "48"
    shell.run("cluster", "config", "set", f"{key}=72", answer="y\n")
    later = shell.run("cluster", "config", "set", "registerNameServerPeriod=20000", "--yes")
    assert later.stderr.splitlines() == [
        "changed on broker-a",
        "registerNameServerPeriod: takes effect at the next start, on brokers with a settings"
        " file; for brokers of skylark up, use its option --set",
    ]
    served = shell.json("cluster", "config", "get", "listenPort", "--name-servers")
    assert (served[0]["server"], served[0]["value"]) == (shell.namesrv, "0")  # as it was started


def test_mistakes_about_settings(shell: Shell) -> None:
    config = ("cluster", "config")
    error = shell.error(*config, "get", "fileReservdTime", code=4)
    assert error == "there is no setting fileReservdTime: did you mean fileReservedTime?"
    assert "no setting zzz" in shell.error(*config, "set", "zzz=1", "--yes", code=4)
    error = shell.error(*config, "set", "fileReservedTime=long", "--yes", code=1)
    assert "fileReservedTime" in error
    shell.error(*config, "get", "--broker", "nobody", code=4)
    assert "is not KEY=VALUE" in shell.run(*config, "set", "x", code=2).stderr
    both = shell.run(*config, "get", "--name-servers", "--broker", "broker-a", code=2)
    assert "name servers belong to no cluster" in both.stderr
    Shell(NOWHERE).error(*config, "get", code=3)
