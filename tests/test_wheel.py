"""The wheel of the project, alone in an environment: demo and pytest plugin work from there.

Nothing of the checkout is in sight, and no extra but ``pytest`` is installed. The same with Spark
is in ``tests/interop/test_spark_wheel.py``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import skylark
from tests.interop.clean_environment import CleanEnvironment
from tools.release.artifacts import metadata_of, wheel_problems

ROOT = Path(__file__).parents[1]
RUN_WITHIN_S = 120
#: A project of somebody else.
USERS_TEST = """
from pathlib import Path
import skylark
from skylark import Message
from skylark.sync import LitePullConsumer, Producer

def test_x(rocketmq, rocketmq_topic, rocketmq_group):
    with Producer("users", rocketmq.options) as producer:
        sent = producer.send(Message(rocketmq_topic, b"hello"))
    with LitePullConsumer(rocketmq_group, rocketmq.options).subscribe(rocketmq_topic) as consumer:
        (message,) = consumer.poll(timeout=30)
    assert (message.body, message.msg_id) == (b"hello", sent.msg_id)
    assert Path(skylark.__file__).is_relative_to({packages!r})
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> CleanEnvironment:
    folder = tmp_path_factory.mktemp("wheel") / "environment"
    return CleanEnvironment(folder, extras=("pytest",))


def run(
    environment: CleanEnvironment, folder: Path, *command: str
) -> subprocess.CompletedProcess[str]:
    """Run a command of the environment, outside the checkout."""
    program = environment.python.with_name(command[0])
    done = subprocess.run(
        [program, *command[1:]],
        cwd=folder,
        env=environment.environ(HOME=str(folder)),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_WITHIN_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def test_the_wheel_holds_what_it_should_and_no_more(environment: CleanEnvironment) -> None:
    assert list(wheel_problems(environment.wheel)) == []
    metadata = metadata_of(environment.wheel)
    assert metadata["Version"] == skylark.__version__
    tested = {f"Programming Language :: Python :: {version}" for version in ("3.11", "3.13")}
    classifiers = set(metadata.get_all("Classifier") or ())
    assert {it for it in classifiers if it[-5:-3] == " 3"} == tested
    assert metadata.get_all("Project-URL") is None  # [tool.skylark] repository is empty


def test_the_version_is_known(environment: CleanEnvironment, tmp_path: Path) -> None:
    program = "import skylark; print(skylark.__version__)"
    assert run(environment, tmp_path, "python", "-c", program).stdout.strip() == skylark.__version__
    shown = run(environment, tmp_path, "skylark", "--version").stdout
    assert shown == f"skylark {skylark.__version__}\n"


def test_the_demo_runs_without_the_extra_of_spark(
    environment: CleanEnvironment, tmp_path: Path
) -> None:
    assert not (environment.packages / "pyspark").exists()
    assert (environment.packages / "skylark" / "demo" / "pipeline.yaml").is_file()
    done = run(environment, tmp_path, "skylark", "demo")
    assert done.stderr.startswith("Spark is not installed: ")
    assert done.stderr.splitlines()[0].endswith(": pip install 'skylark-mq[spark]'")
    assert "21 of 21 checks" in done.stderr
    assert "totals" not in done.stdout


def test_the_pytest_plugin_serves_other_projects(
    environment: CleanEnvironment, tmp_path: Path
) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TEST.format(packages=str(environment.packages)))
    scope = "asyncio_default_fixture_loop_scope=function"  # else pytest-asyncio warns
    done = run(environment, tmp_path, "python", "-m", "pytest", "-q", "-W", "error", "-o", scope)
    assert "1 passed" in done.stdout


def test_the_extra_pytest_is_enough_for_a_test_inside_the_checkout(
    environment: CleanEnvironment, tmp_path: Path
) -> None:
    """A reader of the README saves a first test there, under the settings of ``pyproject.toml``."""
    (tmp_path / "test_users.py").write_text("async def test_x(rocketmq_virtual):\n    pass\n")
    settings = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path))
    done = run(environment, tmp_path, "python", "-m", "pytest", "-q", *settings, "test_users.py")
    assert "1 passed" in done.stdout
