"""The jobs with tables of Delta Lake and Iceberg, read back by the libraries themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import Catalog
from pyiceberg.table import Transaction
from pyspark.sql import SparkSession

from tests.spark.test_jobs_lake import JobSite as LakeSite
from tests.spark.test_jobs_topics import JobSite as ClusterSite
from tests.support.iceberg_catalog import iceberg_catalog


class Tables(Protocol):
    """The tables of one format, as another program sees them."""

    format: str

    def name(self, short: str) -> str: ...

    def rows(self, name: str) -> list[dict[str, Any]]: ...

    def commit_count(self, name: str) -> int: ...

    def fail_commits(self, patch: pytest.MonkeyPatch) -> None: ...


def _no_answer(*given: object, **more: object) -> None:
    raise OSError("no answer")


class DeltaTables:
    """Folders."""

    format = "delta"

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def name(self, short: str) -> str:
        return str(self._folder / short)

    def rows(self, name: str) -> list[dict[str, Any]]:
        return _sorted(DeltaTable(name).to_pyarrow_table())

    def commit_count(self, name: str) -> int:
        return DeltaTable(name).version()

    def fail_commits(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(DeltaTable, "create_write_transaction", _no_answer)


class IcebergTables:
    """Names in a catalog."""

    format = "iceberg"

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog

    def name(self, short: str) -> str:
        return f"tests.db.{short}"

    def rows(self, name: str) -> list[dict[str, Any]]:
        return _sorted(self._catalog.load_table(name.removeprefix("tests.")).scan().to_arrow())

    def commit_count(self, name: str) -> int:
        return len(self._catalog.load_table(name.removeprefix("tests.")).metadata.snapshots)

    def fail_commits(self, patch: pytest.MonkeyPatch) -> None:
        patch.setattr(Transaction, "add_files", _no_answer)


def _sorted(table: pa.Table) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = table.to_pylist()
    columns = [name for name in ("topic", "queueId", "queueOffset") if name in table.schema.names]
    return sorted(rows, key=lambda row: [row[name] for name in columns])


@pytest.fixture(scope="module")
def _quiet(spark: SparkSession) -> Iterator[None]:
    spark.sparkContext.setLogLevel("OFF")
    yield
    spark.sparkContext.setLogLevel("WARN")


@pytest.fixture(scope="module")
def site(_quiet: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LakeSite]:
    site = LakeSite(tmp_path_factory.mktemp("table-jobs"))
    with site.open:
        yield site


@pytest.fixture(params=["delta", "iceberg"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tables]:
    if request.param == "delta":
        yield DeltaTables(tmp_path)
        return
    with iceberg_catalog(tmp_path) as catalog:
        yield IcebergTables(catalog)


def test_an_archive_has_each_message_once_and_is_read_by_the_other_jobs(
    site: LakeSite, tables: Tables, tmp_path: Path
) -> None:
    topic, target = site.topic(2), site.topic(2)
    lake, of_format = tables.name("lake"), ("--format", tables.format)
    archive = (
        *("archive", topic, "--to", lake, *of_format),
        *("--checkpoint", str(tmp_path / "ck"), "--batch-rows", "25"),
    )
    site.publish(topic, {0: 40, 1: 7})
    assert [span["rows"] for span in site.done(*archive, "--dry-run")] == [40, 7]
    code, text = site.refused("verify", topic, "--lake", lake, *of_format)
    assert (code, text.startswith(f"there is no {tables.format.title()} table ")) == (4, True)
    assert site.done(*archive)["rows"] == 47
    site.publish(topic, {1: 5})
    assert site.done(*archive)["rows"] == 5
    rows = tables.rows(lake)
    assert [(row["queueId"], row["queueOffset"], row["body"]) for row in rows] == [
        (0, number, b"0-%d" % number) for number in range(40)
    ] + [(1, offset, b"1-%d" % n) for offset, n in enumerate([*range(7), *range(5)])]
    assert {row["dt"] for row in rows} == {row["storeTimestamp"].date() for row in rows}
    assert dict(rows[3]["properties"])["text"] == "ä=ö"

    verified = site.done("verify", topic, "--lake", lake, *of_format)
    assert (verified["agree"], verified["lake_rows"], verified["expired"]) == (True, 52, 0)
    assert site.done("replay", lake, "--to", target, *of_format)["rows"] == 52
    assert site.bodies(target) == site.bodies(topic)


def test_a_crash_on_either_side_of_the_commit_repeats_and_loses_nothing(
    site: LakeSite, tables: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = site.topic(1)
    lake, checkpoint = tables.name("lake"), tmp_path / "ck"
    archive = (
        *("archive", topic, "--to", lake, "--format", tables.format),
        *("--checkpoint", str(checkpoint)),
    )
    site.publish(topic, {0: 10})

    # Between the files and the commit of the table: nobody reads these files.
    with monkeypatch.context() as patch:
        tables.fail_commits(patch)
        code, text = site.refused(*archive)
    assert (code, text.partition(" failed: ")[2]) == (1, "no answer")
    assert tables.rows(lake) == []
    assert len([*tmp_path.rglob("part-*.parquet")]) == 1
    assert site.done(*archive)["rows"] == 10

    # Between the commit of the table and that of Spark, which plans the batch again: nothing is
    # read.
    site.publish(topic, {0: 5})
    assert site.done(*archive)["rows"] == 5
    before = tables.commit_count(lake)
    forget_last_batch(checkpoint)
    assert site.done(*archive)["rows"] == 0
    assert tables.commit_count(lake) == before
    assert [(row["queueOffset"], row["body"]) for row in tables.rows(lake)] == [
        (offset, b"0-%d" % number) for offset, number in enumerate([*range(10), *range(5)])
    ]


def forget_last_batch(checkpoint: Path) -> None:
    """What a driver leaves that was killed before it wrote that its batch is done."""
    commits = checkpoint / "commits"
    last = max(int(file.name) for file in commits.iterdir() if file.name.isdecimal())
    for name in (str(last), f".{last}.crc"):
        (commits / name).unlink()


def test_archives_share_a_table_unless_they_would_double_a_topic(
    site: LakeSite, tables: Tables, tmp_path: Path
) -> None:
    topic, other = site.topic(1), site.topic(1)
    lake, empty = tables.name("lake"), tables.name("empty")
    first, second = ("--checkpoint", str(tmp_path / "1")), ("--checkpoint", str(tmp_path / "2"))
    of_format = ("--format", tables.format)
    site.publish(topic, {0: 4})
    site.publish(other, {0: 3})
    assert site.done("archive", topic, "--to", lake, *of_format, *first)["rows"] == 4
    code, text = site.refused("archive", topic, "--to", lake, *of_format, *second)
    assert code == 2
    assert text.startswith(f"{lake} has messages of topic {topic} already")
    code, text = site.refused("archive", topic, "--to", empty, *of_format, *first)
    assert code == 2
    assert text.startswith(f"{empty} was not written with the checkpoint {tmp_path / '1'}")
    assert site.done("archive", other, "--to", lake, *of_format, *second)["rows"] == 3
    assert Counter(row["topic"] for row in tables.rows(lake)) == {topic: 4, other: 3}


def test_compact_writes_a_table_as_a_whole(site: LakeSite, tables: Tables) -> None:
    topic = site.topic(1)
    site.publish(topic, {0: 9})
    lake = tables.name("latest")
    compact = ("compact", topic, "--key", "tags", "--to-lake", lake, "--format", tables.format)
    for more in ((), ("--overwrite",)):
        assert site.done(*compact, *more)["written"] == 2
        found = {row["key"]: row["body"] for row in tables.rows(lake)}
        assert found == {"A": b"0-8", "B": b"0-7"}
    code, text = site.refused(*compact)
    assert (code, text) == (2, f"{lake} exists already: --overwrite replaces it")


@pytest.mark.usefixtures("_quiet")
def test_a_mirror_does_not_send_a_batch_again_whose_pairs_are_in_the_table(
    tables: Tables, tmp_path: Path
) -> None:
    site = ClusterSite(tmp_path / "clusters")
    with site.open:
        topic = site.topic(1)
        site.west_admin.topics.create(topic, queue_count=1)
        site.publish(topic, {0: 9})
        checkpoint, pairs = tmp_path / "ck", tables.name("pairs")
        mirror = (
            *("mirror", topic, "--to-namesrv", site.west_namesrv.address),
            *("--checkpoint", str(checkpoint)),
            *("--pairs", pairs, "--pairs-format", tables.format),
        )
        assert site.done(*mirror)["rows_sent"] == 9
        forget_last_batch(checkpoint)
        site.publish(topic, {0: 2}, first=9)
        again = site.done(*mirror)
        assert (again["rows_read"], again["rows_sent"]) == (2, 2)
        assert len(site.rows(topic, site.west)) == 11
        found = {
            (row["sourceOffset"] + k, row["targetOffset"] + k)
            for row in tables.rows(pairs)
            for k in range(row["count"])
        }
        assert found == {(offset, offset) for offset in range(11)}
