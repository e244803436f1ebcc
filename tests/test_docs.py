"""The documents are true: their commands run, their links lead somewhere."""

from __future__ import annotations

import fcntl
import re
import sys
from pathlib import Path

import pytest

from tests.support.docs_runner import (
    Block,
    Command,
    DocError,
    Runner,
    broken_links,
    commands_only_shown,
    output_matches,
    parse_blocks,
    parse_console,
)

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples/README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "newsfragments/README.md",
]
GENERATED = ROOT / "docs" / "reference"  # its text blocks are command lines that other tests check
COMING = {"broker/api.py"}  # modules that the glossary may name before they exist


@pytest.mark.timeout(600)  # Spark starts several times in one of them, slowly on a busy machine
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_document(document: Path, tmp_path: Path) -> None:
    text = document.read_text()
    try:
        Runner(ROOT, tmp_path).run(text)
    except DocError as error:
        pytest.fail(f"{document.relative_to(ROOT)}, {error}", pytrace=False)
    if GENERATED not in document.parents:
        assert commands_only_shown(text) == []
    assert broken_links(text, document.parent) == []


def test_the_readme_lists_every_folder() -> None:
    listed = set(
        re.findall(r"^\| `([a-z_/.]+)/` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    )
    packages = {
        f"src/skylark/{path.parent.name}" for path in (ROOT / "src/skylark").glob("*/__init__.py")
    }
    others = {"bench", "examples", "newsfragments", "tests", "tools"}
    if (ROOT / "docs").is_dir() and any((ROOT / "docs").iterdir()):
        others.add("docs")
    assert listed == packages | others


def test_the_glossary_names_modules_that_exist_and_each_word_once() -> None:
    rows = re.findall(
        r"^\| ([^|`]+) \|.*\| `([a-z_0-9/]+\.py)` \|$",
        (ROOT / "docs/glossary.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) > 100
    words = [word for word, _ in rows]
    assert sorted(words) == sorted(set(words))
    assert {module for _, module in rows if not (ROOT / "src/skylark" / module).is_file()} <= COMING


def test_a_document_may_have_a_cluster_beside_it(tmp_path: Path) -> None:
    text = '# T\n<!-- cluster: --brokers 1 -->\n```sh\ntest -n "$NAMESRV_ADDR"\n```\n'
    assert Runner(ROOT, tmp_path).run(text) == 1


def test_python_blocks_may_share_a_process(tmp_path: Path) -> None:
    mark = "<!-- python: one process -->\n"
    text = f"{mark}```python\nx = 1\n```\n```console\n$ true\n```\n```python\nassert x == 1\n```\n"
    (tmp_path / "good").mkdir()
    assert Runner(ROOT, tmp_path / "good").run(text) == 3
    with pytest.raises(DocError, match=r"(?s)line 8: failed\n.*NameError: name 'y' is not defined"):
        Runner(ROOT, tmp_path).run(text.replace("assert x", "assert y"))


def test_a_shared_process_that_hangs_or_ends_is_reported(tmp_path: Path) -> None:
    mark = "<!-- python: one process -->\n"
    (tmp_path / "slow").mkdir()
    with pytest.raises(DocError, match=r"line 2: no end after 0\.2 s"):
        Runner(ROOT, tmp_path / "slow", timeout_s=0.2).run(
            f"{mark}```python\nimport signal; signal.pause()\n```\n"
        )
    with pytest.raises(DocError, match="line 2: failed"):
        Runner(ROOT, tmp_path).run(f"{mark}```python\nimport os; os._exit(0)\n```\n")


@pytest.mark.parametrize(
    "text",
    ["# T\n", "<!-- not run: needs a JDK -->\n```sh\nls\n```\n", "```text\nls\n```\n"],
)
def test_a_page_that_runs_nothing_says_why(text: str, runner: Runner) -> None:
    with pytest.raises(DocError, match="nothing on this page is run"):
        runner.run(text)
    assert runner.run(f"<!-- no commands: a list of words -->\n{text}") == 0


def test_a_page_that_runs_something_does_not_say_that_it_has_no_commands(runner: Runner) -> None:
    with pytest.raises(DocError, match="says that it has no commands"):
        runner.run("<!-- no commands: a list of words -->\n```sh\ntrue\n```\n")


def test_no_commands_needs_a_reason(runner: Runner) -> None:
    for mark in ("<!-- no commands -->", "<!-- no commands:  -->"):
        with pytest.raises(DocError, match="'no commands' without a reason"):
            runner.run(f"{mark}\n")


def test_commands_in_a_block_that_is_only_shown_are_found() -> None:
    text = "```text\n$ ls\nskylark up\nls\n```\n```ini\nmake x\n```\n```console\n$ make\n```\n"
    assert commands_only_shown(text) == ["line 1: $ ls", "line 1: skylark up", "line 6: make x"]


# ---- the parser ------------------------------------------------------------------------------


def test_blocks_are_found_with_language_and_place() -> None:
    text = "# T\n\n```console\n$ ls\n```\n\ntext\n\n  ```python\n  if x:\n      y()\n  ```\n"
    assert parse_blocks(text) == [
        Block(3, "console", ("$ ls",)),
        Block(9, "python", ("if x:", "    y()")),
    ]


def test_a_longer_fence_may_hold_a_shorter_one() -> None:
    (block,) = parse_blocks("````text\n```sh\nls\n```\n````\n")
    assert block.lines == ("```sh", "ls", "```")


def test_a_block_may_say_why_it_is_not_run() -> None:
    (block,) = parse_blocks("<!-- not run: needs a JDK -->\n\n```sh\nls\n```\n")
    assert block.not_run == "needs a JDK"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```\nls\n```\n", "line 1: language '' is not one of"),
        ("```bash\nls\n```\n", "line 1: language 'bash' is not one of"),
        ("```sh\nls\n", "line 1: block is never closed"),
        ("<!-- not run -->\n```sh\nls\n```\n", "line 1: 'not run' without a reason"),
        ("<!-- not run:  -->\n```sh\nls\n```\n", "line 1: 'not run' without a reason"),
        ("<!-- not run: x -->\ntext\n```sh\nls\n```\n", "line 2: 'not run' stands above no block"),
        ("<!-- not run: x -->\n", "ends with 'not run'"),
        ("<!-- not run: x -->\n```text\nls\n```\n", "line 2: 'not run' above a block that is only"),
    ],
)
def test_bad_blocks_are_refused(text: str, message: str) -> None:
    with pytest.raises(DocError, match=re.escape(message)):
        parse_blocks(text)


def test_console_commands_and_their_output() -> None:
    block = Block(10, "console", ("$ echo a \\", "> b", "a b", "", "$ true", "$ ls", "..."))
    assert parse_console(block) == [
        Command(11, "echo a \\\nb", ("a b", "")),
        Command(15, "true", ()),
        Command(16, "ls", ("...",)),
    ]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (("output", "$ ls"), "line 2: a console block starts with"),
        (("$ ls \\",), "line 2: the command goes on after the block"),
        ((), "line 1: empty console block"),
    ],
)
def test_bad_console_blocks_are_refused(lines: tuple[str, ...], message: str) -> None:
    with pytest.raises(DocError, match=re.escape(message)):
        parse_console(Block(1, "console", lines))


@pytest.mark.parametrize(
    ("expected", "output", "matches"),
    [
        (("a", "b"), "a\nb\n", True),
        (("a", "b"), "a  \nb\n\n", True),
        (("a",), "a\nb\n", False),
        (("a", "b"), "a\n", False),
        (("a.c",), "abc\n", False),
        (("port ... ready",), "port 9876 ready\n", True),
        (("port ... ready",), "port\n9876 ready\n", False),
        (("a", "..."), "a\n", True),
        (("a", "...", "d"), "a\nb\nc\nd\n", True),
        (("a", "...", "d"), "a\nb\nc\n", False),
        (("...",), "", True),
        (("x",), "", False),
    ],
)
def test_output_matching(expected: tuple[str, ...], output: str, matches: bool) -> None:
    assert output_matches(expected, output) is matches


# ---- the runner ------------------------------------------------------------------------------


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    return Runner(ROOT, tmp_path, timeout_s=20)


def console(*lines: str) -> str:
    return "\n".join(["```console", *lines, "```", ""])


def test_commands_share_a_folder_and_the_environment(runner: Runner, tmp_path: Path) -> None:
    text = (
        console(
            "$ echo hello > file", "$ cat file", "hello", "$ which python", f"{sys.prefix}/bin/..."
        )
        + "```sh\ntest -f file\necho more >> file\n```\n"
        + "```python\nassert open('file').read() == 'hello\\nmore\\n'\n```\n"
        + console("$ .venv/bin/python -c 'import skylark'", '$ echo "$HOME"', str(tmp_path))
        + "```text\nnot a command\n```\n"
        + "<!-- not run: it would fail -->\n```sh\nfalse\n```\n"
    )
    assert runner.run(text) == 7


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (console("$ true", "$ exit 3"), "line 3: exit 3\nended with 3"),
        (console("$ echo a", "b"), "expected:\nb\nbut got:\na"),
        (console("$ false | true"), "ended with 1"),
        (console('$ echo "$UNSET_NAME"'), "ended with 1"),
        ("```sh\nfalse\ntrue\n```\n", "ended with 1"),
        ("```python\nassert False\n```\n", "AssertionError"),
        ("```python\nimport warnings\nwarnings.warn('old')\n```\n", "UserWarning: old"),
        (console("$ make nosuch"), "No rule to make target"),
        (console("$ make interop PART=nosuch"), "make interop needs PART="),
    ],
)
def test_what_does_not_work_is_reported(runner: Runner, text: str, message: str) -> None:
    with pytest.raises(DocError) as caught:
        runner.run(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("shown", "printed", "expected"),
    [
        ("ID    STATUS", "ID      STATUS", True),
        ("A1B2  SEND_OK", "FFFF0  SEND_OK", True),
        ("A1B2  SEND_OK", "FFFF0  FLUSH", False),
        ("A1B2  SEND_OK", "xyz  SEND_OK", False),
        ("A1B2  ... OK", "00  a b c OK", True),
    ],
)
def test_real_output_with_parts_that_vary(shown: str, printed: str, expected: bool) -> None:
    assert output_matches((shown,), printed, r"[0-9A-F]{2,}(?= |$)") is expected


def test_what_varies_belongs_to_the_next_block(runner: Runner) -> None:
    text = "# T\n\n<!-- varies: \\d+ -->\n" + console("$ echo $$", "17")
    assert runner.run(text) == 1
    with pytest.raises(DocError, match="expected"):
        runner.run(text + console("$ echo $$", "17"))
    for wrong in ("# T\n<!-- varies: x -->\ntext\n", "<!-- varies: x -->\n```sh\ntrue\n```\n"):
        with pytest.raises(DocError, match="'varies'"):
            parse_blocks(wrong)


def test_make_commands_are_checked_and_not_run(runner: Runner) -> None:
    assert runner.run(console("$ make", "$ make test", "$ make clean ARGS=-q")) == 3


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    hasty = Runner(ROOT, tmp_path, timeout_s=0.2)
    with pytest.raises(DocError, match=r"no end after 0\.2 s"):
        hasty.run(console("$ tail -f /dev/null"))


def test_what_a_command_leaves_running_is_ended(runner: Runner, tmp_path: Path) -> None:
    holder = (
        "import fcntl, signal\n"
        "file = open('lock', 'w')\n"
        "fcntl.flock(file, fcntl.LOCK_EX)\n"
        "open('held', 'w').close()\n"
        "signal.pause()\n"
    )
    (tmp_path / "holder.py").write_text(holder)
    text = console("$ python holder.py & while [ ! -e held ]; do sleep 0.01; done")
    assert runner.run(text) == 1
    with (tmp_path / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # the lock goes with its holder; waits for it if need be


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("")
    text = "[a](there.md) [b](there.md#part) [c](https://example.org/x) [d](#here) [e](gone.md)"
    assert broken_links(text, tmp_path) == ["gone.md"]
