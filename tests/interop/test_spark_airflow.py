"""The DAG of ``examples/airflow`` under a real Airflow: imported, and its tasks run once.

Airflow pins the versions of many packages: it has an environment of its own, made once in
``build/interop``. The tasks call the ``skylark`` command of the environment of the tests.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from skylark import ClientOptions, Message
from skylark.spark.java import java_home
from skylark.sync import Producer
from tests.interop.toolchain import ToolchainError, filled
from tests.support.up import cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1800)]

AIRFLOW: Final = ("apache-airflow-core==3.3.2", "apache-airflow-providers-standard==1.21.0")
EXAMPLE: Final = Path(__file__).parents[2] / "examples" / "airflow"
RUN_WITHIN_S: Final = 600
COUNT: Final = 30
PROGRAM: Final = """
import json, sys
from topics_to_lake import dag

if sys.argv[1:] == ["import"]:
    graph = {task.task_id: sorted(task.downstream_task_ids) for task in dag.tasks}
    print("RESULT", json.dumps(graph))
else:
    run = dag.test()
    tasks = {each.task_id: each for each in run.get_task_instances()}
    found = {name: [each.state, each.xcom_pull(task_ids=name)] for name, each in tasks.items()}
    print("RESULT", json.dumps(found))
"""


def install(target: Path) -> None:
    """Airflow in a virtual environment; its scripts do not survive the move, ``python`` does."""
    venv.EnvBuilder(symlinks=True, with_pip=True).create(target)
    done = subprocess.run(
        [target / "bin" / "python", "-m", "pip", "install", "--quiet", *AIRFLOW],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    if done.returncode:
        raise ToolchainError(f"Airflow cannot be installed: {done.stderr[-500:]}")


@pytest.fixture(scope="module")
def python() -> Path:
    return filled(AIRFLOW[0].replace("==", "-"), install) / "bin" / "python"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    topics = ("--topic", "orders:2", "--topic", "payments:2")
    with cluster(tmp_path_factory.mktemp("up"), *topics) as address:
        with Producer("test", ClientOptions(namesrv=address)) as producer:
            for number in range(COUNT):
                producer.send(Message("orders", b"%d" % number))
        yield address


def run(python: Path, folder: Path, *words: str, **variables: str) -> dict[str, Any]:
    """What the program prints; variables of Airflow are given by its environment."""
    environ = {
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(EXAMPLE),
        "PYTHONDONTWRITEBYTECODE": "1",
        "AIRFLOW_HOME": str(folder / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLE),
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        "JAVA_HOME": str(java_home(os.environ, Path(sys.prefix, "java"))),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **{f"AIRFLOW_VAR_{name.upper()}": value for name, value in variables.items()},
    }
    for command in (["-m", "airflow", "db", "migrate"], ["-c", PROGRAM, *words]):
        done = subprocess.run(
            [python, *command],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (line,) = [each for each in done.stdout.splitlines() if each.startswith("RESULT ")]
    found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
    return found


def test_the_tasks_and_their_order(python: Path, tmp_path: Path) -> None:
    assert run(python, tmp_path, "import") == {
        "archive_orders": ["verify_orders"],
        "archive_payments": ["verify_payments"],
        "verify_orders": [],
        "verify_payments": [],
    }


def test_a_run_archives_and_verifies(python: Path, tmp_path: Path, namesrv: str) -> None:
    found = run(
        python,
        tmp_path,
        skylark_namesrv=namesrv,
        skylark_command=str(Path(sys.executable).with_name("skylark")),
        lake_folder=str(tmp_path / "lake"),
    )
    assert {state for state, _ in found.values()} == {"success"}, found
    results = {name: result for name, (_, result) in found.items()}
    assert results["archive_orders"]["rows"] == COUNT
    assert results["archive_payments"]["rows"] == 0
    assert (results["verify_orders"]["agree"], results["verify_orders"]["lake_rows"]) == (
        True,
        COUNT,
    )
