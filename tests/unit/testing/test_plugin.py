"""The pytest plugin, as a project has it that knows nothing of this one.

Each test here is a small project in a folder of its own, run by ``python -m pytest``. The entry
point is that of ``pyproject.toml``, whatever the environment was installed with.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

from skylark.testing.plugin import users_frames

ROOT = Path(__file__).parents[3]

SENDING = """
    import pytest
    from skylark import Message
    from skylark.sync import Producer

    def send(b, topic, count):
        with Producer("p", b.options) as producer:
            for number in range(count):
                producer.send(Message(topic, b"%d" % number))

    def stored(b, topic):
        from skylark.sync import Admin
        with Admin(b.options) as admin:
            return sum(queue.max_offset for queue in admin.offsets.bounds(topic).queues)
"""


class Project:
    """A folder with tests, and what a run of them said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "project"
        self.folder.mkdir()
        self._site = folder / "site"
        entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
            "entry-points"
        ]
        lines = ["[pytest11]", *(f"{k} = {v}" for k, v in entry_points["pytest11"].items())]
        info = self._site / "users_environment-1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: users-environment\nVersion: 1\n"
        )
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
        (self.folder / "pytest.ini").write_text(
            "[pytest]\naddopts = --strict-markers -p no:asyncio -p no:cacheprovider\n"
            "filterwarnings = error\n"
        )

    def write(self, name: str, *sources: str) -> None:
        text = "\n".join(textwrap.dedent(source) for source in sources)
        (self.folder / name).write_text(text)

    def run(self, *arguments: str) -> tuple[dict[str, int], str]:
        """How many tests had which outcome, and all that was printed."""
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTEST", "SKYLARK", "NAMESRV", "ROCKETMQ", "CI"))
        }
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *arguments],
            cwd=self.folder,
            env={**environ, "PYTHONPATH": str(self._site)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        output = ran.stdout + ran.stderr
        summary = output.strip().splitlines()[-1] if output.strip() else ""
        counts = {
            kind: int(count) for count, kind in re.findall(r"(\d+) (passed|failed|error)", summary)
        }
        return counts, output


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


USE = """
    def test_messages_pass(rocketmq, rocketmq_topic, rocketmq_group):
        send(rocketmq, rocketmq_topic, 3)
        assert stored(rocketmq, rocketmq_topic) == 3
        assert rocketmq_topic.startswith("test_messages_pass-")
        assert rocketmq_group != rocketmq_topic

    @pytest.mark.parametrize("number", range(4))
    def test_nobody_else_writes_here(rocketmq, rocketmq_topic, number):
        assert stored(rocketmq, rocketmq_topic) == 0
        send(rocketmq, rocketmq_topic, 1)
        assert stored(rocketmq, rocketmq_topic) == 1

    def test_topics_go_away(rocketmq):
        from skylark.sync import Admin
        with Admin(rocketmq.options) as admin:
            assert not [name for name in admin.topics.names() if name.startswith("test_")]
"""


def test_the_fixtures_in_one_process(project: Project) -> None:
    project.write("test_use.py", SENDING, USE)
    counts, output = project.run()
    assert counts == {"passed": 6}, output


def test_the_fixtures_with_xdist(project: Project) -> None:
    addresses = """
        def test_whose_broker(rocketmq, worker_id, tmp_path_factory):
            shared = tmp_path_factory.getbasetemp().parent
            (shared / f"{worker_id}.address").write_text(rocketmq.namesrv)
    """
    project.write("test_use.py", SENDING, USE)
    project.write("test_a.py", addresses)
    project.write("test_b.py", addresses)
    base = project.folder / "base"
    # each: every worker runs every test
    counts, output = project.run("-n", "2", "--dist", "each", f"--basetemp={base}")
    assert counts == {"passed": 16}, output
    assert len({path.read_text() for path in base.glob("*.address")}) == 2


def test_asynchronous_tests_use_the_same_broker(project: Project) -> None:
    project.write(
        "test_async.py",
        """
        import asyncio
        from skylark import Message
        from skylark.aio import Producer, PushConsumer

        def test_async(rocketmq, rocketmq_topic, rocketmq_group):
            async def main():
                got = asyncio.Queue()
                consumer = PushConsumer(rocketmq_group, rocketmq.options)

                @consumer.subscribe(rocketmq_topic)
                async def take(message):
                    got.put_nowait(message.body)

                async with consumer, Producer("p", rocketmq.options) as producer:
                    await producer.send(Message(rocketmq_topic, b"x"))
                    assert await got.get() == b"x"

            asyncio.run(main())
        """,
    )
    counts, output = project.run()
    assert counts == {"passed": 1}, output


def test_a_project_has_settings_of_its_own(project: Project) -> None:
    project.write(
        "conftest.py",
        """
        import pytest

        @pytest.fixture(scope="session")
        def rocketmq_settings():
            return {"maxMessageSize": 100}
        """,
    )
    project.write(
        "test_settings.py",
        SENDING,
        """
        def test_too_large(rocketmq, rocketmq_topic):
            with Producer("p", rocketmq.options) as producer:
                with pytest.raises(Exception, match="limit 100B"):
                    producer.send(Message(rocketmq_topic, bytes(1000)))
        """,
    )
    counts, output = project.run()
    assert counts == {"passed": 1}, output


def test_a_broker_that_cannot_start_is_an_error_with_its_cause(project: Project) -> None:
    project.write(
        "test_broken.py",
        """
        import pytest

        @pytest.fixture(scope="session")
        def rocketmq_settings():
            return {"autoCreateTopicEnabled": True}

        def test_x(rocketmq_topic):
            pass
        """,
    )
    counts, output = project.run()
    assert counts == {"error": 1}, output
    assert "autoCreateTopicEnabled: there is no such setting" in output


def test_faults_strike_only_the_marked_test_and_are_reported_with_their_seed(
    project: Project,
) -> None:
    project.write(
        "test_faults.py",
        SENDING,
        """
        @pytest.mark.faults(duplicate=0.5, seed=7)
        def test_marked(rocketmq, rocketmq_topic):
            send(rocketmq, rocketmq_topic, 20)
            assert rocketmq.faults.hit_count
            doubled = rocketmq.faults.hits["request.310/duplicate"]
            assert stored(rocketmq, rocketmq_topic) == 20 + doubled
            assert doubled == 0, f"doubled {doubled}"

        @pytest.mark.faults(duplicate=0.1, drop_ack=0.05, delay_ms=(0, 5), seed=7)
        def test_idempotent(rocketmq, rocketmq_topic):
            send(rocketmq, rocketmq_topic, 40)
            assert stored(rocketmq, rocketmq_topic) > 40

        def test_unmarked(rocketmq, rocketmq_topic):
            assert rocketmq.faults is None
            send(rocketmq, rocketmq_topic, 20)
            assert stored(rocketmq, rocketmq_topic) == 20
        """,
    )
    doubled = set()
    for _ in range(2):
        counts, output = project.run()
        assert counts == {"failed": 1, "passed": 2}, output
        assert "Faults of rocketmq" in output
        assert "@pytest.mark.faults(duplicate=0.5, seed=7); what took effect:" in output
        doubled.add(re.findall(r"AssertionError: doubled (\d+)", output)[0])
    assert len(doubled) == 1  # the seed decides


def test_wrong_markers_are_errors_that_say_so(project: Project) -> None:
    project.write(
        "test_wrong.py",
        """
        import pytest

        @pytest.mark.faults(duplicates=0.1)
        def test_unknown(rocketmq): pass

        @pytest.mark.faults(0.1)
        def test_positional(rocketmq): pass

        @pytest.mark.faults(drop_ack=5)
        def test_no_probability(rocketmq): pass

        @pytest.mark.faults(drop_ack=0.5)
        def test_no_broker(): pass

        @pytest.mark.faults("of somebody else")
        def test_another_marker_of_this_name(): pass
        """,
    )
    counts, output = project.run()
    assert counts == {"error": 4, "passed": 1}, output
    assert "duplicates is not one of duplicate, drop_ack, delay_ms, seed" in output
    assert "it takes keywords only, not 0.1" in output
    assert "drop_ack must be a probability from 0 to 1, not 5" in output
    assert "the test does not use the fixture rocketmq" in output


def test_the_plugin_itself_loads_nothing() -> None:
    program = (
        "import pytest, sys; before = set(sys.modules); import skylark.testing.plugin; "
        "print(sorted(set(sys.modules) - before))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = {name.split(".")[0] for name in re.findall(r"'([^']+)'", ran.stdout)}
    assert loaded <= {"skylark", "__future__"}
    assert "skylark.core" not in ran.stdout


# ---- asynchronous tests, variables, reports ------------------------------------------------------

ASYNC = """
    import asyncio
    from skylark import Message

    async def test_on_the_loop_of_the_test(rocketmq_async):
        got = asyncio.Queue()
        topic = await rocketmq_async.topic()
        consumer = rocketmq_async.consumer()

        @consumer.subscribe(topic)
        async def take(message):
            got.put_nowait(message.body)

        async with rocketmq_async.producer() as producer, consumer:
            await producer.send(Message(topic, b"hello"))
            assert await got.get() == b"hello"

    async def test_two_hours_later(rocketmq_virtual):
        got = []
        topic = await rocketmq_virtual.topic()
        consumer = rocketmq_virtual.consumer()

        @consumer.subscribe(topic)
        async def take(message):
            got.append(message.body)

        async with rocketmq_virtual.producer() as producer, consumer:
            await producer.send(Message(topic, b"later"), delay=7200)
            await rocketmq_virtual.clock.advance(hours=1)
            assert got == []
            await rocketmq_virtual.clock.advance(hours=1, seconds=2)
            assert got == [b"later"]
"""


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        (("-p", "asyncio", "--asyncio-mode=strict", "-p", "no:anyio"), "pytest.mark.asyncio"),
        (("-p", "asyncio", "--asyncio-mode=auto", "-p", "no:anyio"), ""),
    ],
    ids=["asyncio-strict", "asyncio-auto"],
)
def test_asynchronous_fixtures(project: Project, options: tuple[str, ...], mark: str) -> None:
    (project.folder / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:cacheprovider\nfilterwarnings = error\n"
        "asyncio_default_fixture_loop_scope = function\n"
    )
    marked = f"import pytest\npytestmark = {mark}\n" if mark else ""
    project.write("test_async.py", marked, ASYNC)
    counts, output = project.run(*options)
    assert counts == {"passed": 2}, output


def test_application_code_finds_the_broker(project: Project) -> None:
    project.write(
        "test_env.py",
        """
        import os
        import pytest
        from skylark import Message, NoNameServerError
        from skylark.sync import Producer

        def application():
            with Producer("p") as producer:
                producer.send(Message("Orders", b"hello"))

        def test_found(rocketmq_env, rocketmq):
            assert os.environ["NAMESRV_ADDR"] == rocketmq_env == rocketmq.namesrv
            assert "SKYLARK_NAMESRV" not in os.environ
            application()

        def test_gone_again():
            assert os.environ["SKYLARK_NAMESRV"] == "127.0.0.1:1"
            assert "NAMESRV_ADDR" not in os.environ
        """,
    )
    project.write("conftest.py", "import os\nos.environ['SKYLARK_NAMESRV'] = '127.0.0.1:1'\n")
    counts, output = project.run()
    assert counts == {"passed": 2}, output


FAILING = """
    from skylark import Message, PullResult
    from skylark.sync import Producer

    def application(topic, options):
        with Producer("p", options) as producer:
            producer.send(Message(topic, bytes(5_000_000)))  # the user's line

    def test_too_large(rocketmq, rocketmq_topic):
        application(rocketmq_topic, rocketmq.options)
"""


@pytest.mark.parametrize("option", ["", "--full-trace"])
def test_a_failure_ends_at_the_users_line(project: Project, option: str) -> None:
    project.write("test_failing.py", FAILING.replace(", PullResult", ""))
    counts, output = project.run(*filter(None, [option]))
    assert counts == {"failed": 1}, output
    assert ("skylark/client/" in output) == bool(option)
    places = re.findall(r"^(\S+\.py):\d+: ", output, re.MULTILINE)
    assert (places[-1] == "test_failing.py") != bool(option)
    assert "# the user's line" in output


def test_frames_of_futures_inside_skylark_belong_to_it() -> None:
    modules = [
        "tests.a",
        "skylark.sync",
        "concurrent.futures._base",
        "skylark.x",
        "tests.b",
        "json",
    ]
    assert list(users_frames(modules)) == [True, False, False, False, True, True]
