r"""Runs what the documents tell a reader to type.

A document is Markdown with fenced blocks. What happens to a block depends on its language:

===========  =====================================================================================
console      every line that starts with ``$ `` is run by bash; the lines below it, if there are
             any, are the expected output. ``...`` stands for any text within a line; alone on a
             line, for any number of lines. A command goes on in the next line after a ``\``.
sh           the whole block is run as one bash script and must succeed
python       the whole block is run as a program and must succeed
text, ...    shown only (:data:`SHOWN`)
===========  =====================================================================================

A block without language, or with an unknown one, is an error: it would escape this runner. A block
that cannot run says why in the line above it: ``<!-- not run: needs a JDK -->``. A document of
which nothing is run says why, too: ``<!-- no commands: a table of words -->``.

The blocks of one document run in order in one empty folder, in which ``.venv`` is the environment
of this interpreter. ``make`` commands are not run but put to ``make -n`` in the repository, which
knows whether the target and its variables are good.

Documents show real output. What differs from run to run is named by a regular expression above the
block, ``<!-- varies: [0-9A-F]{32} -->``: a part of the shown output that matches it stands for any
text that does, and a run of blanks for any number of blanks, as columns are as wide as what is in
them.

A document with the line ``<!-- cluster: ARGUMENTS -->`` has ``skylark up --ephemeral ARGUMENTS``
running beside it, and ``NAMESRV_ADDR`` set to its name server.

In a document with the line ``<!-- python: one process -->`` the python blocks are what a reader
types into one Python shell: a block sees the names of those before it.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.up import cluster

RUN = frozenset({"console", "python", "sh"})
SHOWN = frozenset({"ini", "java", "json", "properties", "text", "toml", "yaml"})
TIMEOUT_S = 240  # Spark on a busy machine

_FENCE = re.compile(r"( *)(`{3,})\s*([^`\s]*)[^`]*$")
_NOT_RUN = re.compile(r"\s*<!--\s*not run(.*?)-->\s*$")
_VARIES = re.compile(r"\s*<!--\s*varies:(.*?)-->\s*$")
_NO_COMMANDS = re.compile(r"^<!--\s*no commands(.*?)-->$", re.MULTILINE)
_COMMAND = re.compile(r"\s*(?:\$|(?:curl|docker|make|pip|python3?|skylark|systemctl)(?= )) ?.*")
_CLUSTER = re.compile(r"^<!--\s*cluster:(.*?)-->$", re.MULTILINE)
_ONE_PROCESS = re.compile(r"^<!--\s*python: one process\s*-->$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
# Variables that would make the outcome depend on who runs the tests, or on being run by make.
_DROPPED = re.compile(r"MAKE|MFLAGS|SKYLARK_|NAMESRV_ADDR|ROCKETMQ_|PYTEST_|PYTHONPATH")


class DocError(Exception):
    """A document that this runner cannot read, or whose commands do not do what it says."""


@dataclass(frozen=True)
class Block:
    """A fenced block: where it starts, its language, its lines, and why it is not run."""

    line: int
    language: str
    lines: tuple[str, ...]
    not_run: str | None = None
    varies: str | None = None


@dataclass(frozen=True)
class Command:
    """A command of a console block; no ``expected`` lines mean that any output will do."""

    line: int
    text: str
    expected: tuple[str, ...]
    varies: str | None = None


def parse_blocks(text: str) -> list[Block]:
    """All fenced blocks of a document."""
    blocks: list[Block] = []
    lines = text.splitlines()
    reason: str | None = None
    varies: str | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if mark := _NOT_RUN.match(line):
            reason = mark.group(1).strip().removeprefix(":").strip()
            if not reason:
                raise DocError(f"line {number}: 'not run' without a reason")
            continue
        if mark := _VARIES.match(line):
            varies = mark.group(1).strip()
            continue
        fence = _FENCE.match(line)
        if fence is None:
            if varies and line.strip():
                raise DocError(f"line {number}: 'varies' stands above no block")
            if reason and line.strip():
                raise DocError(f"line {number}: 'not run' stands above no block")
            continue
        indent, ticks, language = fence.groups()
        first = number
        while number < len(lines) and lines[number].strip() != ticks:
            number += 1
        if number == len(lines):
            raise DocError(f"line {first}: block is never closed")
        body = tuple(content.removeprefix(indent) for content in lines[first:number])
        number += 1
        if language not in RUN | SHOWN:
            known = ", ".join(sorted(RUN | SHOWN))
            raise DocError(f"line {first}: language {language!r} is not one of {known}")
        if reason and language in SHOWN:
            raise DocError(f"line {first}: 'not run' above a block that is only shown")
        if varies and language != "console":
            raise DocError(f"line {first}: 'varies' above a block without output")
        blocks.append(Block(first, language, body, reason, varies))
        reason = varies = None
    if reason:
        raise DocError("the document ends with 'not run'")
    return blocks


def parse_console(block: Block) -> list[Command]:
    """The commands of a console block with the output expected of each."""
    commands: list[Command] = []
    lines = iter(enumerate(block.lines, block.line + 1))
    for number, line in lines:
        if line.startswith("$ "):
            text = line.removeprefix("$ ")
            while text.endswith("\\"):
                _, more = next(lines, (0, None))
                if more is None:
                    raise DocError(f"line {number}: the command goes on after the block")
                text = f"{text}\n{more.removeprefix('> ')}"
            commands.append(Command(number, text, (), block.varies))
        elif commands:
            last = commands[-1]
            commands[-1] = replace(last, expected=(*last.expected, line))
        else:
            raise DocError(f"line {number}: a console block starts with '$ '")
    if not commands:
        raise DocError(f"line {block.line}: empty console block")
    return commands


def output_matches(expected: tuple[str, ...], output: str, varies: str | None = None) -> bool:
    """Compare line by line; blanks at line ends and empty lines at the end do not count."""
    pattern = ""
    for line in expected:
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            parts = (_literal(part, varies) for part in line.rstrip().split("..."))
            pattern += "[^\n]*".join(parts) + "\n"
    actual = "".join(f"{line.rstrip()}\n" for line in output.rstrip().splitlines())
    return re.fullmatch(pattern, actual) is not None


def _literal(text: str, varies: str | None) -> str:
    """A pattern for shown text."""
    if varies is None:
        return re.escape(text)
    pattern, place = "", 0
    for match in re.finditer(varies, text):
        pattern += _columns(text[place : match.start()]) + f"(?:{varies})"
        place = match.end()
    return pattern + _columns(text[place:])


def _columns(text: str) -> str:
    return " +".join(map(re.escape, re.split(" +", text)))


class Runner:
    """Runs the blocks of one document in ``folder``."""

    def __init__(self, root: Path, folder: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self._root = root
        self._folder = folder
        self._timeout_s = timeout_s
        (folder / ".venv").symlink_to(sys.prefix)
        self._environ = {
            key: value for key, value in os.environ.items() if not _DROPPED.match(key)
        } | {
            "HOME": str(folder),
            "TMPDIR": str(folder),  # where ``skylark down`` looks: only what is of this document
            "PATH": os.pathsep.join([str(Path(sys.prefix, "bin")), os.environ.get("PATH", "")]),
        }

    def run(self, text: str) -> int:
        """Run a document; the number of commands that were run or checked."""
        is_without_commands = _has_no_commands(text)
        wanted = _CLUSTER.search(text)
        if wanted is None:
            done = self._run_blocks(text)
        else:
            with cluster(self._folder, *shlex.split(wanted.group(1))) as namesrv:
                self._environ["NAMESRV_ADDR"] = namesrv
                done = self._run_blocks(text)
        if is_without_commands and done:
            raise DocError(f"the page says that it has no commands, and {done} were run")
        if not is_without_commands and not done:
            raise DocError("nothing on this page is run: say why, <!-- no commands: reason -->")
        return done

    def _run_blocks(self, text: str) -> int:
        done = 0
        with ExitStack() as stack:
            shell: PythonShell | None = None
            if _ONE_PROCESS.search(text):
                shell = stack.enter_context(closing(PythonShell(self._folder, self._environ)))
            for block in parse_blocks(text):
                if block.not_run or block.language in SHOWN:
                    continue
                if shell is not None and block.language == "python":
                    shell.run(block, self._timeout_s)
                    done += 1
                    continue
                for command in self._commands(block):
                    self._check(command)
                    done += 1
        return done

    def _commands(self, block: Block) -> Iterator[Command]:
        if block.language == "console":
            yield from parse_console(block)
            return
        program = "\n".join(block.lines) + "\n"
        if block.language == "python":
            script = self._folder / f"block_{block.line}.py"
            script.write_text(program)
            program = f"{shlex.quote(sys.executable)} -W error {script.name}"
        yield Command(block.line, program, ())

    def _check(self, command: Command) -> None:
        if command.text.split()[:1] == ["make"]:
            code, output = self._execute(f"make -n {command.text[len('make') :]}", self._root)
            expected: tuple[str, ...] = ()
        else:
            code, output = self._execute(command.text, self._folder)
            expected = command.expected
        where = f"line {command.line}: {command.text}"
        if code != 0:
            raise DocError(f"{where}\nended with {code}:\n{output}")
        if expected and not output_matches(expected, output, command.varies):
            wanted = "\n".join(expected)
            raise DocError(f"{where}\nexpected:\n{wanted}\nbut got:\n{output}")

    def _execute(self, script: str, folder: Path) -> tuple[int | str, str]:
        # A file, not a pipe: a server left in the background would hold a pipe open.
        log = self._folder / ".output"
        with log.open("wb") as sink:
            process = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=folder,
                env=self._environ,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            code: int | str
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                code = f"no end after {self._timeout_s:g} s"
            finally:
                _end_group(process.pid)
                process.wait()
        return code, log.read_text(errors="replace")


class PythonShell:
    """A Python process that runs blocks one after another in one namespace.

    It is told the name of a file on stdin and answers with a byte on a pipe of its own: what the
    blocks print, and what processes print that they start, goes to a file.
    """

    _PROGRAM = """
import sys, traceback
answers = open(int(sys.argv[1]), "wb", 0)
names = {"__name__": "__main__"}
for line in sys.stdin:
    file = line.strip()
    try:
        with open(file) as source:
            exec(compile(source.read(), file, "exec"), names)
        answers.write(b"+")
    except BaseException:
        traceback.print_exc()
        answers.write(b"-")
"""

    def __init__(self, folder: Path, environ: Mapping[str, str]) -> None:
        self._folder = folder
        self._log = folder / ".python-output"
        self._answers, answers = os.pipe()
        with self._log.open("wb") as sink:
            self._process = subprocess.Popen(
                [sys.executable, "-W", "error", "-c", self._PROGRAM, str(answers)],
                cwd=folder,
                env=environ,
                stdin=subprocess.PIPE,
                stdout=sink,
                stderr=subprocess.STDOUT,
                pass_fds=[answers],
                start_new_session=True,
            )
        os.close(answers)

    def run(self, block: Block, timeout_s: float) -> None:
        """Run a block; raises DocError."""
        assert self._process.stdin is not None
        script = self._folder / f"block_{block.line}.py"
        script.write_text("\n".join(block.lines) + "\n")
        self._process.stdin.write(f"{script.name}\n".encode())
        self._process.stdin.flush()
        ready, _, _ = select.select([self._answers], [], [], timeout_s)
        if not ready:
            raise DocError(f"line {block.line}: no end after {timeout_s:g} s\n{self._said()}")
        if os.read(self._answers, 1) != b"+":
            raise DocError(f"line {block.line}: failed\n{self._said()}")

    def close(self) -> None:
        """End the process, and what it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        _end_group(self._process.pid)
        self._process.wait()
        os.close(self._answers)

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-10_000:]


def _end_group(group: int) -> None:
    """End whatever a command started and left running."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return  # nothing left


def _has_no_commands(text: str) -> bool:
    """Whether a document says why nothing of it is run."""
    mark = _NO_COMMANDS.search(text)
    if mark and not mark.group(1).strip().removeprefix(":").strip():
        raise DocError("'no commands' without a reason")
    return mark is not None


def commands_only_shown(text: str) -> list[str]:
    """Lines that look like commands in blocks that are only shown: nothing checks them."""
    return [
        f"line {block.line}: {line.strip()}"
        for block in parse_blocks(text)
        if block.language in SHOWN
        for line in block.lines
        if _COMMAND.fullmatch(line)
    ]


def broken_links(text: str, folder: Path) -> list[str]:
    """Links to files that do not exist; links to the web are not followed."""
    targets = (match.group(1).partition("#")[0] for match in _LINK.finditer(text))
    return [
        target
        for target in targets
        if target and "://" not in target and not (folder / target).exists()
    ]
