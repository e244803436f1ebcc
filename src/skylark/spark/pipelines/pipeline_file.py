"""Pipeline file: its format, and the parser that turns it into a :class:`PipelineFile`.

::

    name: orders
    cluster: {nameServer: "${NAMESRV:-127.0.0.1:9876}"}
    checkpoints: file:///data/checkpoints
    spark: {master: "local[*]", conf: {spark.sql.shuffle.partitions: "4"}}
    pipelines:
      - name: paid-to-lake
        source: {format: rocketmq, options: {topic: orders, tags: PAID}}
        sql: SELECT *, to_date(storeTimestamp) AS dt FROM input
        sink: {format: parquet, path: file:///lake/paid, partitionBy: [dt]}
        trigger: {processingTime: 10 seconds}
      - name: alerts
        source: {format: rocketmq, options: {topic: orders}}
        python: alerting:transform
        sink: {format: rocketmq, options: {topic: alerts, delivery: exactly-once}}
        on_failure: restart
        restart: {pause: 5s, limit: 10}

``cluster`` has options for every source and every sink of format rocketmq, unless they set them
themselves. A pipeline may have ``sql`` over the view ``input``, a ``python`` function from
DataFrame to DataFrame, neither, or both: then the function gets the result of the SQL. Without a
trigger, batches follow each other without a pause; ``availableNow: true`` ends when everything that
was stored at the start is processed.

``on_failure`` says what a failure of the pipeline means (:class:`RestartPolicy`): ``restart`` runs
it again from its checkpoint after a pause, which doubles with each failure in a row; ``isolate``
leaves it failed, and the others run on; ``stop`` stops the others, too.

``bad_records`` is a topic for messages that the source cannot decode (``valueFormat``). ``expect``
has a condition for columns of the result, ``{amount: "> 0"}``: the violations of each are counted,
and ``on_violation`` says what becomes of such a row (:data:`ON_VIOLATION`).

Everything that can be checked without a request is checked here: keys, names, and the options of
sources and sinks. One :class:`PipelineFileError` reports all mistakes, with line and column:
:class:`Walker` records each mistake and goes on, and in place of a wrong value it returns an empty
one. Scalars are not converted: ``port: 08`` is the text ``08``. This module needs no Spark.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from skylark.core.backoff import Backoff
from skylark.core.errors import ConfigError, SkylarkError
from skylark.core.strict_yaml import (
    Mistake,
    compose,
    elements,
    entries,
    mistake_at,
    nearest,
    scalar_text,
)
from skylark.spark.option_table import CONNECTION_OPTIONS, duration_ms, whole
from skylark.spark.sink.sink_options import SinkOptions, read_sink_options
from skylark.spark.source.source_options import SourceOptions, source_options

if TYPE_CHECKING:
    from skylark.core.strict_yaml import Node

T = TypeVar("T")

FORMAT: Final = "rocketmq"
PIPELINES_MAX: Final = 64
ON_FAILURE: Final = ("restart", "isolate", "stop")
#: ``keep`` only counts, ``drop`` leaves the row out, ``fail`` ends the query.
ON_VIOLATION: Final = ("keep", "drop", "fail")
RESTART_PAUSE_MAX_S: Final = 300.0
OUTPUT_MODES: Final = ("append", "complete", "update")
#: Formats of sinks that write files to a folder, with a log of their batches.
FILE_FORMATS: Final = ("parquet", "orc", "json", "csv", "text", "avro")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_FUNCTION: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")
_REFERENCE: Final = re.compile(
    r"\$\$\{|\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)"
)


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Source of a pipeline: the options for Spark, and their parsed form."""

    given: Mapping[str, str]
    options: SourceOptions


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """Sink of a pipeline; ``topic_options`` are the parsed options of format rocketmq."""

    format: str
    path: str | None = None
    given: Mapping[str, str] = {}
    partition_by: tuple[str, ...] = ()
    output_mode: str = "append"
    topic_options: SinkOptions | None = None


class Trigger(msgspec.Struct, frozen=True):
    """Trigger of a pipeline: when its batches run."""

    available_now: bool = False
    interval_ms: int = 0

    def __str__(self) -> str:
        if self.available_now:
            return "what is there now"
        return f"every {self.interval_ms} ms" if self.interval_ms else "batch after batch"


class RestartPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What happens when a pipeline fails."""

    #: One of :data:`ON_FAILURE`; None: ``isolate`` for a run that ends by itself, whose scheduler
    #: repeats it, and ``restart`` for one that does not.
    on_failure: str | None = None
    pause_ms: int = 5_000  #: before the first restart
    limit: int = 10  #: restarts in a row without a completed row; then it is isolated

    def pause_s(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        first_s = self.pause_ms / 1000
        return Backoff(first_s=first_s, most_s=max(first_s, RESTART_PAUSE_MAX_S)).pause_s(failures)


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """One pipeline of a file; ``line`` is its first line."""

    name: str
    line: int
    source: Source
    sink: Sink
    sql: str | None = None
    python: str | None = None
    trigger: Trigger = Trigger()
    restart: RestartPolicy = RestartPolicy()
    expect: Mapping[str, str] = {}
    on_violation: str = "keep"


class PipelineFile(msgspec.Struct, frozen=True, kw_only=True):
    """Parsed content of a pipeline file."""

    path: Path
    name: str
    checkpoints: str
    pipelines: tuple[Pipeline, ...]
    master: str = "local[*]"
    conf: Mapping[str, str] = {}

    def chosen(self, names: tuple[str, ...]) -> tuple[Pipeline, ...]:
        """The pipelines with these names, or all if none is given; raises ConfigError."""
        known = {pipeline.name: pipeline for pipeline in self.pipelines}
        for name in names:
            if name not in known:
                raise ConfigError(
                    f"{self.path.name} has no pipeline {name}", hint=nearest(name, list(known))
                )
        return tuple(known[name] for name in dict.fromkeys(names)) or self.pipelines


class PipelineFileError(ConfigError):
    """A file with mistakes; the message lists all of them."""

    def __init__(self, path: Path, mistakes: list[Mistake]) -> None:
        self.mistakes = tuple(sorted(mistakes, key=lambda each: (each.line, each.column)))
        super().__init__(f"{path.name}: " + "; ".join(map(str, self.mistakes)))


def load(path: Path, environ: Mapping[str, str]) -> PipelineFile:
    """Parse a file; raises ConfigError, and PipelineFileError for mistakes in it."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text", hint="pipeline files are YAML in UTF-8") from None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"the pipeline file {path} cannot be read", hint=reason) from None
    tree = compose(text, aliases=True)
    if isinstance(tree, Mistake):
        raise PipelineFileError(path, [tree])
    walker = Walker(environ)
    document = _FileReader(walker, environ).document(tree, path)
    if walker.mistakes or document is None:
        raise PipelineFileError(path, walker.mistakes)
    return document


class _FileReader:
    """Parses a file, one method per part; the walker collects the mistakes."""

    def __init__(self, walker: Walker, environ: Mapping[str, str]) -> None:
        self._walker = walker
        self._environ = environ
        self._cluster: dict[str, str] | None = {}  #: None if it has mistakes

    def document(self, node: Node, path: Path) -> PipelineFile | None:
        walker = self._walker
        required = ("name", "checkpoints", "pipelines")
        parts = walker.mapping(node, "the file", (*required, "cluster", "spark"), required)
        if "cluster" in parts:
            self._read_cluster(parts["cluster"])
        master, conf = "local[*]", {}
        if "spark" in parts:
            spark = walker.mapping(parts["spark"], "spark", ("master", "conf"))
            if "master" in spark:
                master = walker.text(spark["master"], "spark.master")
            if "conf" in spark:
                conf = walker.texts(spark["conf"], "spark.conf")
        pipelines = self._pipelines(parts["pipelines"]) if "pipelines" in parts else ()
        if not all(name in parts for name in required):
            return None
        name = self._name(parts["name"], "name")
        checkpoints = walker.text(parts["checkpoints"], "checkpoints")
        if not checkpoints:
            walker.wrong(parts["checkpoints"], "checkpoints must be a folder")
        return PipelineFile(
            path=path,
            name=name,
            checkpoints=checkpoints,
            pipelines=pipelines,
            master=master,
            conf=conf,
        )

    def _read_cluster(self, node: Node) -> None:
        names = [option.name for option in CONNECTION_OPTIONS]
        count = len(self._walker.mistakes)
        parts = self._walker.mapping(node, "cluster", names)
        found = {name: self._walker.text(parts[name], f"cluster.{name}") for name in parts}
        self._cluster = found if len(self._walker.mistakes) == count else None

    def _name(self, node: Node, what: str) -> str:
        name = self._walker.text(node, what)
        if not _NAME.fullmatch(name):
            self._walker.wrong(
                node, f"{what} must be letters, digits, dots, dashes and underscores, 100 at most"
            )
        return name

    def _pipelines(self, node: Node) -> tuple[Pipeline, ...]:
        found: dict[str, Pipeline] = {}
        items = self._walker.items(node, "pipelines")
        if len(items) > PIPELINES_MAX:
            self._walker.wrong(node, f"there are more than {PIPELINES_MAX} pipelines")
            return ()
        for item in items:
            pipeline = self._pipeline(item)
            if pipeline is None:
                continue
            if pipeline.name in found:
                line = found[pipeline.name].line
                self._walker.wrong(item, f"line {line} has a pipeline {pipeline.name} already")
            found[pipeline.name] = pipeline
        return tuple(found.values())

    def _pipeline(self, node: Node) -> Pipeline | None:
        walker = self._walker
        required = ("name", "source", "sink")
        keys = (*required, "sql", "python", "trigger", "on_failure", "restart", "bad_records",
                "expect", "on_violation")  # fmt: skip
        parts = walker.mapping(node, "a pipeline", keys, required)
        bad_records = walker.optional(parts, "bad_records", None)
        source = self._source(parts["source"], bad_records) if "source" in parts else None
        sink = self._sink(parts["sink"]) if "sink" in parts else None
        trigger = self._trigger(parts["trigger"]) if "trigger" in parts else Trigger()
        sql = walker.optional(parts, "sql", None)
        python = walker.optional(parts, "python", None)
        if sql is not None and not sql.strip():
            walker.wrong(parts["sql"], "sql must be a query over the view input")
        if python is not None and not _FUNCTION.fullmatch(python):
            walker.wrong(parts["python"], "python must be module:function")
        name = self._name(parts["name"], "the name of a pipeline") if "name" in parts else ""
        if source is None or sink is None:
            return None
        return Pipeline(
            name=name,
            line=node.start_mark.line + 1,
            source=source,
            sink=sink,
            sql=sql,
            python=python,
            trigger=trigger,
            restart=self._restart(parts),
            **self._expectations(parts),
        )

    def _expectations(self, parts: Mapping[str, Node]) -> dict[str, Any]:
        walker = self._walker
        expect = walker.texts(parts["expect"], "expect") if "expect" in parts else {}
        for column, condition in expect.items():
            if not condition.strip():
                walker.wrong(parts["expect"], f'expect: {column} needs a condition such as "> 0"')
        on_violation = walker.optional(parts, "on_violation", "keep")
        if on_violation not in ON_VIOLATION:
            walker.wrong(parts["on_violation"], f"on_violation must be {' or '.join(ON_VIOLATION)}")
        elif "on_violation" in parts and not expect:
            walker.wrong(parts["on_violation"], "on_violation belongs to expect")
        return {"expect": expect, "on_violation": on_violation}

    def _source(self, node: Node, bad_records: str | None) -> Source | None:
        walker = self._walker
        parts = walker.mapping(node, "a source", ("format", "options"), ("options",))
        if walker.optional(parts, "format", FORMAT).lower() != FORMAT:
            walker.wrong(parts["format"], f"a source has the format {FORMAT}")
        if "options" not in parts:
            return None
        given = self._options(parts["options"], "a source")
        if given is None:
            return None
        if bad_records is not None:
            given["badRecordsTopic"] = bad_records
        options = self._checked(
            parts["options"],
            lambda: source_options(given, streaming=True, environ=self._environ),
        )
        return None if options is None else Source(given=given, options=options)

    def _sink(self, node: Node) -> Sink | None:
        walker = self._walker
        keys = ("format", "path", "options", "partitionBy", "outputMode")
        parts = walker.mapping(node, "a sink", keys, ("format",))
        if "format" not in parts:
            return None
        sink_format = walker.text(parts["format"], "format")
        to_topic = sink_format.lower() == FORMAT
        path = walker.optional(parts, "path", None)
        mode = walker.optional(parts, "outputMode", "append").lower()
        if mode not in OUTPUT_MODES:
            walker.wrong(parts["outputMode"], f"outputMode must be {' or '.join(OUTPUT_MODES)}")
        columns: tuple[str, ...] = ()
        if "partitionBy" in parts:
            columns = walker.names(parts["partitionBy"], "partitionBy")
        if to_topic:
            return self._topic_sink(node, parts, mode)
        given = walker.texts(parts["options"], "options") if "options" in parts else {}
        if sink_format.lower() in FILE_FORMATS and not path:
            # As an option it means the same for files; other formats may use it for something else.
            path = next((given.pop(name) for name in list(given) if name.lower() == "path"), None)
            if not path:
                walker.wrong(node, f"a sink of format {sink_format} needs path")
        return Sink(
            format=sink_format, path=path, given=given, partition_by=columns, output_mode=mode
        )

    def _topic_sink(self, node: Node, parts: Mapping[str, Node], mode: str) -> Sink | None:
        walker = self._walker
        for key in ("path", "partitionBy"):
            if key in parts:
                walker.wrong(parts[key], f"a sink of format {FORMAT} has no {key}")
        if mode != "append":
            walker.wrong(parts["outputMode"], "a topic takes rows by outputMode append only")
        given = self._options(parts.get("options"), "a sink")
        if given is None:
            return None
        at = parts.get("options", node)
        options = self._checked(at, lambda: read_sink_options(given, self._environ))
        return Sink(format=FORMAT, given=given, topic_options=options)

    def _trigger(self, node: Node) -> Trigger:
        walker = self._walker
        parts = walker.mapping(node, "a trigger", ("processingTime", "availableNow"))
        if len(parts) > 1:
            walker.wrong(node, "processingTime and availableNow exclude each other")
        if "availableNow" in parts:
            return Trigger(available_now=walker.flag(parts["availableNow"], "availableNow"))
        if "processingTime" not in parts:
            return Trigger()
        try:
            interval_ms = duration_ms(walker.text(parts["processingTime"], "processingTime"))
        except ValueError:
            walker.wrong(
                parts["processingTime"], "processingTime must be a time such as 10 seconds"
            )
            return Trigger()
        return Trigger(interval_ms=interval_ms)

    def _restart(self, parts: Mapping[str, Node]) -> RestartPolicy:
        walker = self._walker
        on_failure = walker.optional(parts, "on_failure", None)
        if on_failure is not None and on_failure not in ON_FAILURE:
            walker.wrong(parts["on_failure"], f"on_failure must be {' or '.join(ON_FAILURE)}")
        if "restart" not in parts:
            return RestartPolicy(on_failure=on_failure)
        if on_failure not in (None, "restart"):
            walker.wrong(parts["restart"], f"on_failure: {on_failure} does not restart it")
        given = walker.mapping(parts["restart"], "restart", ("pause", "limit"))
        policy = RestartPolicy(on_failure="restart")
        for key, field, parse in (
            ("pause", "pause_ms", duration_ms),
            ("limit", "limit", whole(1, 1_000_000)),
        ):
            if key in given:
                try:
                    value = parse(walker.text(given[key], f"restart.{key}"))
                except ValueError as error:
                    walker.wrong(given[key], f"restart.{key}: {error}")
                else:
                    policy = msgspec.structs.replace(policy, **{field: value})
        return policy

    # ---- options ---------------------------------------------------------------------------------

    def _options(self, node: Node | None, what: str) -> dict[str, str] | None:
        """The options of a part, completed by those of the cluster; None if there are mistakes."""
        if self._cluster is None:
            return None
        count = len(self._walker.mistakes)
        own = {} if node is None else self._walker.texts(node, f"the options of {what}")
        if len(self._walker.mistakes) > count:
            return None
        taken = {name.lower() for name in own}
        return {n: text for n, text in self._cluster.items() if n.lower() not in taken} | own

    def _checked(self, node: Node, read: Callable[[], T]) -> T | None:
        """The result of ``read``; its error is reported at the option that it names."""
        try:
            return read()
        except SkylarkError as error:
            self._walker.wrong(_named(node, error.message), str(error))
            return None


def _named(node: Node, message: str) -> Node:
    """The key that a message is about."""
    words = set(re.split(r"[^\w.]+", message.lower()))
    for key, name, _ in entries(node, lambda _key, _problem: None) or ():
        if name.lower() in words:
            return key
    return node


# ---- values of YAML nodes ------------------------------------------------------------------------


def expand(text: str, environ: Mapping[str, str]) -> str:
    """Replace environment variables in ``text``; raises ValueError.

    =====================  ==========================================================
    ``${NAME}``            the variable; an error if it is not set
    ``${NAME:-default}``   the variable, or the default if it is not set or is empty
    ``$${``                the two characters ``${``, for SQL that needs them
    =====================  ==========================================================

    A lone ``$``, as in the JSON path ``$.uid``, is kept. Variables are replaced after the file was
    parsed: a variable can hold any text and never changes the structure of the file.
    """

    def value(found: re.Match[str]) -> str:
        if found["broken"]:
            raise ValueError("after ${ there must be a name and }; write $${ for the text itself")
        name, default = found["name"], found["default"]
        if name is None:
            return "${"
        known = environ.get(name)
        if default is not None:
            return known or default
        if known is None:
            raise ValueError(
                f"the environment has no variable {name}: set it, or write ${{{name}:-default}}"
            )
        return known

    return _REFERENCE.sub(value, text)


class Walker:
    """Takes values out of YAML nodes, and records their mistakes.

    Callers must not use any value while :attr:`mistakes` is not empty.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.mistakes: list[Mistake] = []

    def wrong(self, node: Node, text: str) -> None:
        """Record a mistake where ``node`` begins."""
        self.mistakes.append(mistake_at(node, text))

    def mapping(
        self, node: Node, what: str, keys: Collection[str], required: Collection[str] = ()
    ) -> dict[str, Node]:
        """A mapping with these keys and no others."""
        given = self._entries(node, what)
        if given is None:
            return {}
        found: dict[str, Node] = {}
        complete = True
        for key, name, value in given:
            if name not in keys:
                complete = False  # a missing key may be the misspelt one
                self.wrong(key, f"{what} has no key {name}: {nearest(name, keys)}")
            else:
                found[name] = value
        if complete:
            for name in required:
                if name not in found:
                    self.wrong(node, f"{what} needs {name}")
        return found

    def texts(self, node: Node, what: str) -> dict[str, str]:
        """A mapping with any keys to texts."""
        return {
            name: self.text(value, f"{what}: {name}")
            for _, name, value in self._entries(node, what) or ()
        }

    def text(self, node: Node, what: str) -> str:
        """A scalar, with the environment put in."""
        written = scalar_text(node)
        if written is None:
            self.wrong(node, f"{what} must be a text")
            return ""
        try:
            return expand(written, self._environ)
        except ValueError as error:
            self.wrong(node, f"{what}: {error}")
            return ""

    def optional(self, parts: Mapping[str, Node], key: str, default: T) -> str | T:
        """The scalar of a key, or the default if the key is missing."""
        return self.text(parts[key], key) if key in parts else default

    def flag(self, node: Node, what: str) -> bool:
        """``true`` or ``false``."""
        text = self.text(node, what).lower()
        if text not in ("true", "false"):
            self.wrong(node, f"{what} must be true or false")
        return text == "true"

    def names(self, node: Node, what: str) -> tuple[str, ...]:
        """A list of texts; one text is a list as well."""
        found = elements(node)
        return tuple(self.text(each, what) for each in ([node] if found is None else found))

    def items(self, node: Node, what: str) -> list[Node]:
        """The elements of a list that is not empty."""
        found = elements(node)
        if not found:
            self.wrong(node, f"{what} must be a list with at least one element")
            return []
        return found

    def _entries(self, node: Node, what: str) -> Iterator[tuple[Node, str, Node]] | None:
        found = entries(node, lambda key, problem: self.wrong(key, f"{what}: {problem}"))
        if found is None:
            self.wrong(node, f"{what} must be keys with values")
        return found
