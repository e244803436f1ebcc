"""The house rules as functions: source text in, list of faults out.

``test_tidy.py`` runs them over the repository and, for each, shows a text that it reports. Ruff has
cousins of some of these rules; they stand here as well so that a ``noqa`` cannot silence them.

Each rule takes a :class:`Source` and yields :class:`Fault`. The rules of time, printing and
environment hold for ``src`` alone; the others for every Python file of the repository.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70

CLOCK_FILES = frozenset({"src/skylark/core/clock.py", "src/skylark/testing/virtual_clock.py"})

# Names that read a clock or wait for one, whatever they were imported as.
CLOCK_NAMES = frozenset(
    {
        "asyncio.sleep",
        "asyncio.timeout",
        "asyncio.timeout_at",
        "asyncio.wait_for",
        "datetime.date.today",
        "datetime.datetime.now",
        "datetime.datetime.today",
        "datetime.datetime.utcnow",
        "threading.Timer",
    }
)
# Methods of the event loop. The injected clock has its own ``call_at`` and ``call_later``.
LOOP_METHODS = frozenset({"call_at", "call_later", "time"})
WAITS_WITH_TIMEOUT = frozenset({"asyncio.wait", "asyncio.as_completed"})

EVALUATORS = frozenset({"eval", "exec", "compile", "ast.literal_eval"})
PICKLERS = frozenset({"pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve"})
LOG_METHODS = frozenset({"critical", "debug", "error", "exception", "info", "log", "warning"})
LOGGER_NAMES = frozenset({"log", "logger", "logging"})


@dataclass(frozen=True)
class Fault:
    """One break of a rule, printed as ``path:line: text``."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Source:
    """One Python file; ``path`` is relative to the root of the repository."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def aliases(self) -> dict[str, str]:
        """Local name -> dotted name it was imported from."""
        names: dict[str, str] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    local = alias.asname or alias.name.partition(".")[0]
                    names[local] = alias.name if alias.asname else local
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
        return names

    def dotted(self, node: ast.expr) -> str:
        """The full name behind ``a.b.c``, or "" for anything that is not a plain name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        parts.append(self.aliases.get(node.id, node.id))
        return ".".join(reversed(parts))

    @property
    def in_src(self) -> bool:
        return self.path.startswith("src/")

    def fault(self, node: ast.stmt | ast.expr | ast.excepthandler, text: str) -> Fault:
        return Fault(self.path, node.lineno, text)


Rule = Callable[[Source], Iterator[Fault]]


def _imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node, node.module


def _calls(source: Source) -> Iterator[ast.Call]:
    return (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))


def _last_name(node: ast.expr) -> str:
    """``self._loop`` -> ``_loop``; ``asyncio.get_running_loop()`` -> ``get_running_loop``."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def clock(source: Source) -> Iterator[Fault]:
    """Time comes from the injected clock: nothing else reads or awaits the system's."""
    if not source.in_src or source.path in CLOCK_FILES:
        return
    for statement, module in _imports(source):
        if module == "time":
            yield source.fault(statement, "import of time: use the injected clock")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Attribute | ast.Name):
            name = source.dotted(node)
            if name in CLOCK_NAMES:
                yield source.fault(node, f"{name}: use the injected clock")
            elif (
                isinstance(node, ast.Attribute)
                and node.attr in LOOP_METHODS
                and (
                    _last_name(node.value).endswith("loop")
                    or (node.attr == "call_later" and not _last_name(node.value).endswith("clock"))
                )
            ):
                yield source.fault(node, f"{ast.unparse(node)}: use the injected clock")
        elif (
            isinstance(node, ast.Call)
            and source.dotted(node.func) in WAITS_WITH_TIMEOUT
            and any(keyword.arg == "timeout" for keyword in node.keywords)
        ):
            yield source.fault(node, "asyncio wait with a timeout: use the injected clock")


def sleeping_test(source: Source) -> Iterator[Fault]:
    """A test sleeps only inside a loop that polls for something; ``sleep(0)`` is a yield."""
    if not source.path.startswith("tests/"):
        return

    def visit(node: ast.AST, in_loop: bool) -> Iterator[Fault]:
        if isinstance(node, ast.While | ast.For | ast.AsyncFor):
            in_loop = True
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            in_loop = False
        elif (
            isinstance(node, ast.Call)
            and not in_loop
            and source.dotted(node.func) in {"time.sleep", "asyncio.sleep"}
            and not (
                node.args and isinstance(node.args[0], ast.Constant) and not node.args[0].value
            )
        ):
            yield source.fault(node, "sleep outside of a polling loop")
        for child in ast.iter_child_nodes(node):
            yield from visit(child, in_loop)

    yield from visit(source.tree, in_loop=False)


def printing(source: Source) -> Iterator[Fault]:
    """Library code logs or returns; only the command line writes, through its output object."""
    if source.in_src:
        for call in _calls(source):
            if source.dotted(call.func) in {"print", "builtins.print", "pprint.pprint"}:
                yield source.fault(call, "print")


def evaluation(source: Source) -> Iterator[Fault]:
    """No text becomes code, and no literal parser is let loose on it either."""
    if source.in_src:
        for call in _calls(source):
            if source.dotted(call.func).removeprefix("builtins.") in EVALUATORS:
                yield source.fault(call, source.dotted(call.func))


def pickling(source: Source) -> Iterator[Fault]:
    """Nothing of ours is stored or sent in a form that executes when read."""
    if source.in_src:
        for statement, module in _imports(source):
            if module.partition(".")[0] in PICKLERS:
                yield source.fault(statement, f"import of {module}")


def bare_except(source: Source) -> Iterator[Fault]:
    """``except:`` also swallows cancellation and the interrupt key."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler) and node.type is None:
            yield source.fault(node, "bare except")


def docstring(source: Source) -> Iterator[Fault]:
    """Every module says what it is for."""
    if not (ast.get_docstring(source.tree) or "").strip():
        yield Fault(source.path, 1, "module without docstring")


def file_length(source: Source) -> Iterator[Fault]:
    lines = len(source.text.splitlines())
    if lines > FILE_LINES_MAX:
        yield Fault(source.path, lines, f"{lines} lines, at most {FILE_LINES_MAX}")


def function_length(source: Source) -> Iterator[Fault]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                yield source.fault(node, f"{node.name}: {lines} lines, at most 70")


def silenced(source: Source) -> Iterator[Fault]:
    """A silenced checker says which complaint it silences."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type != tokenize.COMMENT:
            continue
        if re.search(r"#\s*type:\s*ignore(?!\[[a-z])", token.string):
            yield Fault(source.path, token.start[0], "type: ignore without code")
        if re.search(r"#\s*noqa(?!:\s*[A-Z]+[0-9])", token.string, re.IGNORECASE):
            yield Fault(source.path, token.start[0], "noqa without code")


def unfinished(source: Source) -> Iterator[Fault]:
    """Open work belongs to the issue tracker."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and UNFINISHED.search(token.string):
            yield Fault(source.path, token.start[0], f"unfinished: {token.string}")


def logging_format(source: Source) -> Iterator[Fault]:
    """Log arguments are passed, not formatted: a line that nobody reads must cost nothing."""
    for call in _calls(source):
        function = call.func
        if not (
            isinstance(function, ast.Attribute)
            and function.attr in LOG_METHODS
            and _last_name(function.value).lstrip("_").lower() in LOGGER_NAMES
        ):
            continue
        position = 1 if function.attr == "log" else 0
        message = call.args[position] if len(call.args) > position else None
        if isinstance(message, ast.JoinedStr | ast.BinOp) or (
            isinstance(message, ast.Call) and _last_name(message.func) == "format"
        ):
            yield source.fault(call, "formatted text in a logging call: pass %s arguments")


def environment(source: Source) -> Iterator[Fault]:
    """Importing a module must not depend on the environment."""
    if not source.in_src:
        return

    def at_import(node: ast.AST) -> Iterator[ast.AST]:
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            for child in ast.iter_child_nodes(node):
                yield from at_import(child)

    for node in at_import(source.tree):
        if isinstance(node, ast.Attribute | ast.Name) and source.dotted(node) in {
            "os.environ",
            "os.getenv",
        }:
            yield source.fault(node, "environment read in a module body")


RULES: tuple[Rule, ...] = (
    clock,
    sleeping_test,
    printing,
    evaluation,
    pickling,
    bare_except,
    docstring,
    file_length,
    function_length,
    silenced,
    unfinished,
    logging_format,
    environment,
)


# ---- text files ------------------------------------------------------------------------------

UNFINISHED = re.compile(
    r"\b(?:TODO|FIXME|XXX|TBD)\b|coming soon|work in progress|lorem ipsum", re.I
)

# Written in pieces, so that this file does not report itself.
MACHINE_PATHS = re.compile(
    r"(?<![\w.~}])/(?:work|root|Users|home(?!/+(?:me|user|rocketmq)\b))/+\w|"
    r"[A-Z]:\\Users\\|\.\./shar" "ed"
)  # fmt: skip
REGISTRIES = re.compile(
    r"\b(?:test\.)?py" r"pi\.org|python" r"hosted\.org|repo1?\.ma" r"ven\.|"
    r"registry\.npm" r"js\.org|--(?:extra-)?index" r"-url|--find" r"-links"
)  # fmt: skip


def machine_traces(path: str, text: str) -> Iterator[Fault]:
    """No path of a developer's machine and no address of a package registry."""
    for number, line in enumerate(text.splitlines(), 1):
        for pattern, what in ((MACHINE_PATHS, "machine path"), (REGISTRIES, "registry address")):
            if match := pattern.search(line):
                yield Fault(path, number, f"{what}: {match.group()}")


def markdown_stubs(path: str, text: str) -> Iterator[Fault]:
    """A document is written or absent: no empty sections, no promises in place of text."""
    heading: tuple[int, int] | None = None  # line, level of a heading that has no text yet
    prose = False
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
        if UNFINISHED.search(line):
            yield Fault(path, number, f"unfinished: {line.strip()}")
        match = None if fenced else re.match(r"(#+) ", line)
        if match:
            level = len(match.group(1))
            if heading and level <= heading[1]:
                yield Fault(path, heading[0], "empty section")
            heading = (number, level)
        elif line.strip():
            heading = None
            prose = True
    if heading:
        yield Fault(path, heading[0], "empty section")
    if not prose:
        yield Fault(path, 1, "no text")


# ---- names of modules ------------------------------------------------------------------------

#: Stems that may occur in more than one package: each package has its own.
REPEATED_STEMS = frozenset(
    {"__init__", "__main__", "app", "config", "errors", "handlers", "metrics"}
)


def module_stems(paths: list[str]) -> Iterator[Fault]:
    """A module is found by its stem: it is unique, and none in its package is nearly the same.

    Below ``src/skylark`` a stem occurs once, except REPEATED_STEMS. Within one top-level package
    no two stems differ by one letter, a plural or underscores.
    """
    first: dict[str, str] = {}
    by_package: dict[str, list[str]] = {}
    for path in sorted(paths):
        _, _, package, *_ = path.split("/")
        stem = path.rpartition("/")[2].removesuffix(".py")
        if stem in REPEATED_STEMS:
            continue
        if stem in first:
            yield Fault(path, 1, f"the stem {stem} is taken by {first[stem]}")
            continue
        first[stem] = path
        for other in by_package.setdefault(package, []):
            if _nearly_equal(stem, other):
                yield Fault(path, 1, f"the stem {stem} is nearly that of {first[other]}")
        by_package[package].append(stem)


def _nearly_equal(one: str, other: str) -> bool:
    if _singular(one) == _singular(other):
        return True
    one, other = one.replace("_", ""), other.replace("_", "")
    shorter, longer = sorted((one, other), key=len)
    at = next((i for i, letter in enumerate(shorter) if letter != longer[i]), len(shorter))
    if len(shorter) == len(longer):
        return shorter[at + 1 :] == longer[at + 1 :]
    return len(shorter) + 1 == len(longer) and shorter[at:] == longer[at + 1 :]


def _singular(stem: str) -> str:
    """The stem without underscores and with each word in the singular."""
    words = (
        word[:-3] + "y" if word.endswith("ies") else word[:-1] if word.endswith("s") else word
        for word in stem.split("_")
    )
    return "".join(words)


# ---- modules nobody imports ------------------------------------------------------------------

ENTRY_POINTS = frozenset(
    {
        "pyspark_rocketmq",
        "skylark",
        "skylark.__main__",
        "skylark.aio",
        "skylark.cli.main",
        "skylark.integrations.kombu",  # its import registers a URL
        "skylark.sync",
        "skylark.testing.plugin",
    }
)
# Tables of lazily loaded commands name their modules as "skylark.cli.namesrv_commands:command".
COMMAND_TABLES = frozenset({"skylark.cli.job", "skylark.cli.main"})


def module_name(path: str) -> str:
    """``src/skylark/wire/__init__.py`` -> ``skylark.wire``."""
    return path.removeprefix("src/").removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _named_modules(source: Source) -> Iterator[str]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and module_name(source.path) in COMMAND_TABLES:
            yield str(node.value).partition(":")[0]


def unimported(sources: list[Source], users: list[Source]) -> set[str]:
    """Modules of ``sources`` that no other one imports.

    Of the ``users`` outside of ``src``, tools count like sources. Tests and benchmarks count only
    for ``skylark.testing``, which is made for tests: a module that only its own test imports is
    dead. Packages count as imported when something below them exists.
    """
    modules = {module_name(source.path): source for source in sources}
    reached = set(ENTRY_POINTS)
    for name, source in modules.items():
        reached |= {named for named in _named_modules(source) if named != name}
    for source in users:
        named = set(_named_modules(source))
        if not source.path.startswith("tools/"):
            named = {name for name in named if name.startswith("skylark.testing.")}
        reached |= named
    packages = {name.rpartition(".")[0] for name in modules}
    return {name for name in modules if name not in reached and name not in packages}
