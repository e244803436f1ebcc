"""The repository keeps its own rules (``tidy_rules.py``), and each rule can fail."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support import tidy_rules
from tests.support.tidy_rules import RULES, Fault, Rule, Source
from tools.release.changelog import HEADINGS

ROOT = Path(__file__).parent.parent

# Bytes captured from a real broker; they hold what its machine was called and stay as they are.
CAPTURED = ("tests/golden/data/",)

# Modules built before their first user, each with the issue that brings it.
AWAITED: dict[str, str] = {}


@cache
def tracked_files() -> list[str]:
    """Files in the repository or about to be: ignored ones are out."""
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return sorted({name for name in listing.split("\0") if name and (ROOT / name).is_file()})


@cache
def python_sources(*folders: str) -> list[Source]:
    names = [n for n in tracked_files() if n.endswith(".py") and n.startswith(folders)]
    return [Source(name, (ROOT / name).read_text()) for name in names]


@pytest.fixture(scope="module", autouse=True)
def forget_sources() -> Iterator[None]:
    """Hundreds of syntax trees would slow every later run of the garbage collector."""
    yield
    python_sources.cache_clear()


def text_files() -> Iterator[tuple[str, str]]:
    for name in tracked_files():
        if not name.startswith(CAPTURED):
            raw = (ROOT / name).read_bytes()
            if b"\0" not in raw:
                yield name, raw.decode()


def report(faults: list[Fault]) -> str:
    return "\n".join(map(str, faults))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_python_sources(rule: Rule) -> None:
    sources = python_sources("src/", "tests/", "bench/", "tools/", "examples/")
    assert len(sources) > 10
    faults = [fault for source in sources for fault in rule(source)]
    assert not faults, report(faults)


def test_no_traces_of_a_machine() -> None:
    faults = [f for name, text in text_files() for f in tidy_rules.machine_traces(name, text)]
    assert not faults, report(faults)


def test_documents_are_written() -> None:
    documents = [(name, text) for name, text in text_files() if name.endswith(".md")]
    assert "README.md" in dict(documents)
    faults = [f for name, text in documents for f in tidy_rules.markdown_stubs(name, text)]
    assert not faults, report(faults)


def test_every_module_has_an_importer() -> None:
    orphans = tidy_rules.unimported(
        python_sources("src/"), python_sources("tests/", "bench/", "tools/")
    )
    assert orphans == set(AWAITED), (
        f"nobody imports {sorted(orphans - set(AWAITED))}; "
        f"no longer awaited: {sorted(set(AWAITED) - orphans)}"
    )


def test_a_module_is_found_by_its_stem() -> None:
    paths = [source.path for source in python_sources("src/skylark/")]
    faults = list(tidy_rules.module_stems(paths))
    assert len(paths) > 100
    assert not faults, report(faults)


@pytest.mark.parametrize(
    ("one", "other", "problem"),
    [
        ("store/offset.py", "client/core/offset.py", "is taken by"),
        ("wire/ha.py", "wire/headers/ha.py", "is taken by"),
        ("store/mapped_file.py", "store/mapped_files.py", "is nearly that of"),
        ("client/member.py", "client/consumer/members.py", "is nearly that of"),
        ("client/entry_list.py", "client/entries_list.py", "is nearly that of"),
        ("broker/topic_table.py", "broker/admin/topictable.py", "is nearly that of"),
        ("broker/send/put.py", "broker/send/pull.py", None),
        ("broker/send/put.py", "broker/send/cut.py", "is nearly that of"),
        ("broker/send/lock.py", "broker/send/clock.py", "is nearly that of"),
        ("store/heartbeat.py", "client/heartbeats.py", None),
        ("store/config.py", "broker/config.py", None),
        ("broker/send/handlers.py", "broker/pull/handlers.py", None),
        ("broker/send/__init__.py", "broker/pull/__init__.py", None),
    ],
)
def test_stems_that_are_equal_or_nearly_so_are_reported(
    one: str, other: str, problem: str | None
) -> None:
    faults = list(tidy_rules.module_stems([f"src/skylark/{one}", f"src/skylark/{other}"]))
    if problem is None:
        assert not faults, report(faults)
    else:
        (fault,) = faults
        assert problem in fault.text


def badly_named(fragments: list[str]) -> list[str]:
    """News fragments that a release would refuse."""
    pattern = re.compile(rf"(?:\d+|\+[a-z0-9-]+)\.(?:{'|'.join(HEADINGS)})\.md")
    return [name for name in fragments if not pattern.fullmatch(name)]


def test_news_fragments_are_well_named() -> None:
    folder = "newsfragments/"
    names = [n.removeprefix(folder) for n in tracked_files() if n.startswith(folder)]
    assert badly_named(names) == ["README.md"]


def test_badly_named_news_fragments_are_reported() -> None:
    assert badly_named(["12.feature.md", "+a-b.bugfix.md"]) == []
    bad = ["12.md", "12.feature", "a.feature.md", "12.features.md", "12.feature.rst"]
    assert badly_named(bad) == bad


# ---- each rule can fail ----------------------------------------------------------------------

SRC = "src/skylark/net/a.py"
TEST = "tests/unit/net/test_a.py"
LONG_BODY = "\n".join("    x = 1" for _ in range(70))

REPORTED: list[tuple[str, str, str]] = [
    ("clock", SRC, "import time"),
    ("clock", SRC, "def f():\n  from time import monotonic"),
    ("clock", SRC, "import asyncio\nasyncio.sleep(1)"),
    ("clock", SRC, "import asyncio as aio\naio.wait_for(x, 1)"),
    ("clock", SRC, "from asyncio import timeout as limit\nlimit(1)"),
    ("clock", SRC, "import asyncio\nnap = asyncio.sleep"),
    ("clock", SRC, "import asyncio\nasyncio.wait(x, timeout=1)"),
    ("clock", SRC, "import asyncio\nasyncio.get_running_loop().call_later(1, f)"),
    ("clock", SRC, "self._loop.call_at(1, f)"),
    ("clock", SRC, "loop.time()"),
    ("clock", SRC, "handle.call_later(1, f)"),
    ("clock", SRC, "from datetime import datetime\ndatetime.now(UTC)"),
    ("clock", SRC, "import datetime as dt\ndt.datetime.utcnow()"),
    ("clock", SRC, "import datetime\ndatetime.date.today()"),
    ("clock", SRC, "from threading import Timer\nTimer(1, f)"),
    ("sleeping_test", TEST, "import time\ntime.sleep(0.1)"),
    ("sleeping_test", TEST, "from asyncio import sleep\nasync def f():\n  await sleep(1)"),
    ("sleeping_test", TEST, "import time\nwhile x:\n  def f():\n    time.sleep(1)"),
    ("printing", SRC, "print(1)"),
    ("printing", SRC, "from pprint import pprint\npprint(1)"),
    ("evaluation", SRC, "eval(x)"),
    ("evaluation", SRC, "exec(x)"),
    ("evaluation", SRC, "import ast\nast.literal_eval(x)"),
    ("pickling", SRC, "import pickle"),
    ("pickling", SRC, "def f():\n  from marshal import loads"),
    ("bare_except", TEST, "try:\n  f()\nexcept:\n  pass"),
    ("docstring", SRC, "x = 1"),
    ("docstring", SRC, '"""  """'),
    ("file_length", TEST, "\n" * 601),
    ("function_length", TEST, f"def f():\n{LONG_BODY}"),
    ("function_length", TEST, f"class A:\n  async def f():\n{LONG_BODY}"),
    ("silenced", TEST, "x = 1  # type: ignore"),
    ("silenced", TEST, "x = 1  # type:ignore [attr-defined]"),
    ("silenced", TEST, "x = 1  # noqa"),
    ("unfinished", SRC, "x = 1  # TODO: more"),
    ("logging_format", SRC, "log.info(f'{x}')"),
    ("logging_format", SRC, "self._logger.warning('%s' % x)"),
    ("logging_format", SRC, "logging.log(10, 'a {}'.format(x))"),
    ("logging_format", SRC, "logger.error('a' + x)"),
    ("environment", SRC, "import os\nA = os.environ['A']"),
    ("environment", SRC, "from os import getenv\nclass A:\n  b = getenv('B')"),
]

ALLOWED: list[tuple[str, str, str]] = [
    ("clock", "src/skylark/core/clock.py", "import time, asyncio\nasyncio.sleep(1)"),
    ("clock", TEST, "import time"),
    ("clock", SRC, "self.clock.call_at(1, f)\nself._clock.call_later(1, f)\nclock.sleep(1)"),
    ("clock", SRC, "import asyncio\nasyncio.wait(tasks)"),
    ("clock", SRC, "from datetime import datetime\ndatetime.fromtimestamp(x, tz=UTC)"),
    ("sleeping_test", TEST, "import time\nwhile not ready():\n  time.sleep(0.01)"),
    ("sleeping_test", TEST, "import asyncio\nasync def f():\n  await asyncio.sleep(0)"),
    ("printing", "tools/a.py", "print(1)"),
    ("evaluation", SRC, "import re\nre.compile('x')"),
    ("bare_except", SRC, "try:\n  f()\nexcept OSError:\n  pass"),
    ("docstring", SRC, '"""What it is for."""'),
    ("file_length", SRC, "\n" * 600),
    ("function_length", SRC, "def f():\n" + "\n".join("    x = 1" for _ in range(69))),
    ("silenced", SRC, "x = '# noqa'  # type: ignore[attr-defined]  # noqa: S101"),
    ("logging_format", SRC, "log.info('%s and %s', a, f'{b}')\nanalog.info(f'{x}')"),
    ("environment", SRC, "import os\ndef f():\n  return os.environ['A']"),
]


def run_rule(name: str, path: str, text: str) -> list[Fault]:
    rule = {rule.__name__: rule for rule in RULES}[name]
    return list(rule(Source(path, text)))


@pytest.mark.parametrize(("name", "path", "text"), REPORTED)
def test_a_break_is_reported(name: str, path: str, text: str) -> None:
    faults = run_rule(name, path, text)
    assert len(faults) == 1, report(faults)
    assert str(faults[0]).startswith(f"{path}:")


@pytest.mark.parametrize(("name", "path", "text"), ALLOWED)
def test_what_is_allowed_passes(name: str, path: str, text: str) -> None:
    assert run_rule(name, path, text) == []


def test_every_rule_is_shown_to_fail() -> None:
    assert {name for name, _, _ in REPORTED} == {rule.__name__ for rule in RULES}


@pytest.mark.parametrize(
    "line",
    [
        "see /ro" + "ot/store",
        "cd /wo" + "rk/main",
        "'/ho" + "me/ann/skylark'",
        "'/ho" + "me/meg/skylark'",
        "/Us" + "ers/ann",
        "C:\\Us" + "ers\\ann",
        "cat ../shar" + "ed/spec.md",
        "https://py" + "pi.org/simple",
        "https://files.python" + "hosted.org/x",
        "https://repo1.ma" + "ven.org/maven2",
        "--index" + "-url https://x",
    ],
)
def test_traces_of_a_machine_are_reported(line: str) -> None:
    assert [f.line for f in tidy_rules.machine_traces("a.md", f"fine\n{line}\n")] == [2]


@pytest.mark.parametrize(
    "line",
    [
        "https://rocketmq.apache.org/docs",
        "net/workers/x",
        "$HOME/work/x",
        "the PyPI package",
        "a/b",
    ],
)
def test_ordinary_text_is_no_trace(line: str) -> None:
    assert list(tidy_rules.machine_traces("a.md", line)) == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("# Title\n", "empty section"),
        ("# A\n\ntext\n\n## B\n\n## C\n\ntext\n", "empty section"),
        ("# A\n\ntext\n\n## B\n", "empty section"),
        ("# A\n\nTODO\n", "unfinished: TODO"),
        ("# A\n\nThe broker is coming soon.\n", "unfinished: The broker is coming soon."),
        ("", "no text"),
    ],
)
def test_markdown_stubs_are_reported(text: str, fault: str) -> None:
    assert fault in [f.text for f in tidy_rules.markdown_stubs("docs/a.md", text)]


def test_written_markdown_passes() -> None:
    text = "# A\n\n## B\n\ntext about SCHEDULE_TOPIC_XXXX\n\n```sh\n# not a heading\n```\n"
    assert list(tidy_rules.markdown_stubs("docs/a.md", text)) == []


def test_an_unimported_module_is_reported() -> None:
    sources = [
        Source("src/skylark/__init__.py", ""),
        Source("src/skylark/__main__.py", "from skylark.cli.main import main"),
        Source("src/skylark/cli/__init__.py", ""),
        Source("src/skylark/cli/main.py", "COMMANDS = {'a': 'skylark.cli.a:command'}"),
        Source("src/skylark/cli/a.py", "from skylark.wire import used"),
        Source("src/skylark/wire/__init__.py", ""),
        Source("src/skylark/wire/used.py", "X = 'skylark.wire.named_only'"),
        Source("src/skylark/wire/named_only.py", "import skylark.wire.named_only"),
        Source("src/skylark/testing/tool.py", ""),
        Source("src/skylark/testing/unused.py", ""),
    ]
    users = [
        Source("tests/t.py", "from skylark.testing import tool\nimport skylark.wire.named_only")
    ]
    assert tidy_rules.unimported(sources, users) == {
        "skylark.wire.named_only",
        "skylark.testing.unused",
    }


def test_a_command_module_needs_its_row() -> None:
    sources = [
        Source("src/skylark/cli/main.py", "COMMANDS = {}"),
        Source("src/skylark/cli/namesrv_commands.py", ""),
    ]
    assert tidy_rules.unimported(sources, []) == {"skylark.cli.namesrv_commands"}
