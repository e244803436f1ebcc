"""``skylark store``: what it prints, its exit codes, and one sentence for every mistake."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from skylark.cli.cli_context import CliContext
from skylark.cli.main import cli
from skylark.cli.output import Output
from skylark.cli.store_commands import check
from skylark.store.files import OsFileSystem

GOLDEN = Path(__file__).parents[2] / "golden" / "data"
BASIC, TORN = str(GOLDEN / "store-basic"), str(GOLDEN / "store-torn")


@pytest.fixture(autouse=True)
def restored_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def skylark(*arguments: str) -> Result:
    """Run the command in this process, which is quicker than one of its own."""
    return CliRunner().invoke(cli, arguments, prog_name="skylark")


def lines(run: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.stdout.splitlines()]


@pytest.fixture
def basic(tmp_path: Path) -> Path:
    return Path(shutil.copytree(BASIC, tmp_path / "store"))


# ---- check -----------------------------------------------------------------------------------


def test_a_clean_store() -> None:
    run = skylark("store", "check", BASIC)
    assert (run.exit_code, run.stderr) == (0, "")
    rows = dict(line.split(None, 1) for line in run.stdout.splitlines())
    assert rows["state"] == "closed in order"
    assert rows["log"] == "0 to 124586"
    assert (rows["records"], rows["queue_entries"], rows["index_entries"]) == ("433", "433", "1316")
    assert (rows["errors"], rows["warnings"], rows["notes"]) == ("0", "0", "0")


def test_findings_are_listed_and_are_a_failure() -> None:
    run = skylark("store", "check", TORN)
    assert (run.exit_code, run.stderr) == (1, "")
    summary, _, table = run.stdout.partition("\n\n")
    assert "warnings       8" in summary
    heading, *rows = table.splitlines()
    assert heading.split() == ["SEVERITY", "KIND", "FILE", "OFFSET", "TEXT"]
    assert len(rows) == 9
    assert rows[0].split()[:4] == ["warning", "store.crashed", "abort", "0"]
    assert "entry 74 points to 143905" in run.stdout


def test_findings_as_json() -> None:
    run = skylark("--output", "json", "store", "check", TORN)
    assert (run.exit_code, run.stderr) == (1, "")
    report = json.loads(run.stdout)
    assert (report["state"], report["warnings"]) == ("not closed in order", 8)
    assert report["left_out"] == {}
    assert report["findings"][1] == {
        "severity": "warning",
        "kind": "log.end",
        "file": "commitlog/00000000000000131072",
        "offset": 142909,
        "text": "the log ends at 142909, and queues have entries up to 144910: the sum of the "
        "parts is not the total size",
    }
    clean = json.loads(skylark("--output", "json", "store", "check", BASIC).stdout)
    assert (clean["findings"], clean["errors"]) == ([], 0)


def test_findings_beyond_the_limit_are_counted(basic: Path) -> None:
    path = basic / "consumequeue/GoldenB/0/00000000000000000000"
    content = bytearray(path.read_bytes())
    for position in range(0, len(content), 40):  # every other entry
        content[position + 19] ^= 1
    path.write_bytes(content)
    run = skylark("store", "check", str(basic))
    assert run.exit_code == 1
    assert run.stderr == "and 50 more findings of kind queue.wrong\n"


def test_a_store_in_use_may_be_checked_and_dumped(basic: Path) -> None:
    lock = OsFileSystem().lock(basic / "lock")
    try:
        run = skylark("store", "check", str(basic))
        assert run.exit_code == 0
        assert "the store is in use" in run.stdout
        dump = skylark("store", "dump", str(basic))
        assert dump.exit_code == 0
        assert dump.stderr == f"{basic} is in use: the newest items may be missing\n"
        assert len(lines(dump)) == 433
    finally:
        lock.release()


def test_progress_is_reported_in_parts_per_thousand() -> None:
    steps: list[int] = []

    class Watched(Output):
        def progress(self, text: str, total: int | None = None) -> Any:
            assert (text, total) == (f"checking {BASIC}", 1000)
            return nullcontext(steps.append)

    context = CliContext(Watched("table", sys.stdout, sys.stderr), None, "text", debug=False)
    result = CliRunner().invoke(check, [BASIC], obj=context)
    assert result.exit_code == 0
    assert sum(steps) == 1000
    assert len(steps) >= 4


# ---- settings --------------------------------------------------------------------------------


def test_sizes_are_taken_from_the_settings(basic: Path, tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=broker-a\nmappedFileSizeCommitLog=65536\nmaxHashSlotNum=100\n")
    run = skylark("store", "check", str(basic), "-c", str(config))
    assert run.exit_code == 1
    assert "and mappedFileSizeCommitLog is 65536" in run.stdout
    again = ("--set", "mappedFileSizeCommitLog=32768")
    run = skylark("store", "check", str(basic), "-c", str(config), *again)
    assert (run.exit_code, run.stderr) == (0, "")


def test_the_log_is_found_where_the_settings_say(basic: Path, tmp_path: Path) -> None:
    (basic / "commitlog").rename(tmp_path / "log")
    assert skylark("store", "check", str(basic)).exit_code == 1
    setting = f"storePathCommitLog={tmp_path / 'log'}"
    assert skylark("store", "check", str(basic), "--set", setting).exit_code == 0
    (tmp_path / "log").rename(basic / "commitlog")  # a copy has it in the usual place
    assert skylark("store", "check", str(basic), "--set", setting).exit_code == 0


@pytest.mark.parametrize(
    ("assignment", "sentence"),
    [
        ("maxHashSlotNum", "'maxHashSlotNum' is not KEY=VALUE"),
        ("maxHashSlotNums=5", "there is no setting maxHashSlotNums, but maxHashSlotNum"),
        ("color=blue", "there is no setting color"),
        ("maxHashSlotNum=many", "maxHashSlotNum: 'many' is not an integer"),
        ("storeType=defaultRocksDB", "consume queues in RocksDB are not supported"),
    ],
)
def test_wrong_settings(assignment: str, sentence: str) -> None:
    for command in ("check", "dump"):
        run = skylark("store", command, BASIC, "--set", assignment)
        assert (run.exit_code, run.stdout) == (2, "")
        assert sentence in " ".join(run.stderr.split())
        assert "Traceback" not in run.stderr


# ---- mistakes --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["check", "dump"])
def test_a_directory_that_is_not_there_or_no_store(command: str, tmp_path: Path) -> None:
    run = skylark("store", command, str(tmp_path / "absent"))
    assert (run.exit_code, run.stdout) == (4, "")
    assert run.stderr == f"Error: directory {tmp_path / 'absent'} does not exist\n"
    run = skylark("store", command, str(tmp_path))
    assert (run.exit_code, run.stdout) == (2, "")
    assert run.stderr.startswith(f"Error: {tmp_path} is not a store: it has none of commitlog, ")
    file = tmp_path / "file"
    file.write_text("x")
    run = skylark("store", command, str(file))
    assert (run.exit_code, run.stdout) == (2, "")
    assert run.stderr == f"Error: {file} is a file, not a store directory\n"


def test_a_directory_inside_a_store() -> None:
    run = skylark("store", "check", str(GOLDEN / "store-basic/commitlog"))
    assert run.exit_code == 2
    assert "name the directory above it (storePathRootDir)" in run.stderr


def test_the_index_has_no_topics() -> None:
    run = skylark("store", "dump", BASIC, "--what", "index", "--topic", "T")
    assert (run.exit_code, run.stdout) == (2, "")
    assert (
        "the index has hashes of keys, but no topics or queues: leave out these options"
        in run.stderr
    )


def test_an_index_whose_shape_nobody_can_tell(basic: Path) -> None:
    for path in (basic / "index").iterdir():
        path.write_bytes(bytes(8440))
    run = skylark("store", "dump", str(basic), "--what", "index")
    assert (run.exit_code, run.stdout) == (2, "")
    assert "--set maxHashSlotNum=N" in run.stderr


def test_help_shows_examples() -> None:
    run = skylark("store", "check", "--help")
    assert run.exit_code == 0
    assert "skylark store check /backup/store -c broker.conf" in run.stdout
    run = skylark("store", "dump", "--help")
    assert run.exit_code == 0
    assert "skylark store dump store --topic Orders --body text" in run.stdout
    run = skylark("store", "--help")
    assert "Check, dump or repair the files of a message store." in run.stdout


# ---- dump ------------------------------------------------------------------------------------


def test_records_one_per_line() -> None:
    run = skylark("store", "dump", BASIC, "--topic", "GoldenTx", "--body", "text")
    assert (run.exit_code, run.stderr) == (0, "")
    found = lines(run)
    assert [it["body"] for it in found] == ["committed", "committed by check-back"]
    assert found[0]["properties"]["KEYS"] == "tx-commit"
    assert [it["queueOffset"] for it in found] == [0, 1]


def test_a_range_of_a_queue() -> None:
    range_ = ("--topic", "GoldenB", "--queue", "0", "--from", "298", "--until", "302")
    found = lines(skylark("store", "dump", BASIC, *range_))
    assert [it["queueOffset"] for it in found] == [298, 299, 300, 301]
    entries = lines(skylark("store", "dump", BASIC, "--what", "queues", *range_))
    assert [it["commitLogOffset"] for it in entries] == [it["commitLogOffset"] for it in found]


def test_index_entries() -> None:
    found = lines(skylark("store", "dump", BASIC, "--what", "index"))
    assert len(found) == 1316


def test_a_log_with_a_hole_is_dumped_and_a_failure(basic: Path) -> None:
    path = basic / "commitlog/00000000000000032768"
    content = bytearray(path.read_bytes())
    content[4:8] = b"gone"
    path.write_bytes(content)
    run = skylark("store", "dump", str(basic), "--body", "none")
    assert run.exit_code == 1
    assert len(lines(run)) == 432
    assert run.stderr == "no record at 32768: no known magic code\n"


def test_a_closed_pipe_ends_quietly() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "skylark", "store", "dump", BASIC],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""


# ---- rebuild-config ----------------------------------------------------------------------------


def rebuild(store: Path, *arguments: str, answer: str | None = None) -> Result:
    command = ["store", "rebuild-config", str(store), *arguments]
    return CliRunner().invoke(cli, command, input=answer, prog_name="skylark")


def test_a_rebuild_shows_what_it_writes_and_asks_first(basic: Path) -> None:
    shutil.rmtree(basic / "config")
    run = rebuild(basic, answer="n\n")
    assert run.exit_code == 1
    rows = [line.split() for line in run.stdout.splitlines()]
    assert ["topic", "GoldenA", "4", "SimpleCQ"] in rows
    assert ["topic", "GoldenBatchCq", "1", "BatchCQ"] in rows
    assert ["group", "golden_retry_cg", "-", "-"] in rows
    assert f"Write these to {basic / 'config'}?" in run.stderr
    assert not (basic / "config").exists()
    run = rebuild(basic, answer="y\n")
    assert run.exit_code == 0
    assert "wrote 9 topics and 1 groups" in run.stderr
    assert b"GoldenA" in (basic / "config/topics.json").read_bytes()


def test_a_rebuild_with_yes_does_not_ask(basic: Path) -> None:
    shutil.rmtree(basic / "config")
    run = CliRunner().invoke(
        cli, ["--output", "json", "store", "rebuild-config", str(basic), "--yes"]
    )
    assert (run.exit_code, run.stderr) == (0, "")
    assert json.loads(run.stdout)[0] == {
        "kind": "topic",
        "name": "%DLQ%golden_retry_cg",
        "queues": 1,
        "queue_type": "SimpleCQ",
    }
    run = rebuild(basic, "--yes")
    assert (run.exit_code, run.stdout) == (0, "")
    assert run.stderr == f"the tables of {basic} lack no topic and no group\n"


def test_a_rebuild_of_a_store_in_use_is_refused(
    basic: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(basic / "config")
    monkeypatch.setattr(OsFileSystem, "is_locked", lambda _files, _path: True)
    run = rebuild(basic, "--yes")
    assert run.exit_code == 2
    assert f"a broker uses {basic}: stop it first" in run.stderr
    assert not (basic / "config").exists()


def test_a_rebuild_needs_a_store(tmp_path: Path) -> None:
    assert rebuild(tmp_path / "nothing", "--yes").exit_code == 4
    assert rebuild(tmp_path, "--yes").exit_code == 2
