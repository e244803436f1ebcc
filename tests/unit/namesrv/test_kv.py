"""The KV table and its file."""

from __future__ import annotations

import json

import pytest

from skylark.core.errors import BrokerError, ConfigError
from skylark.namesrv.kv import KvTable

SIZE_MAX = 1_000


def table(size_max: int = SIZE_MAX) -> KvTable:
    return KvTable(size_max)


def test_put_get_delete() -> None:
    kv = table()
    kv.put("ns", "k", "v")
    kv.put("ns", "k2", "")
    kv.put("ns", "k", "v2")
    assert kv.get("ns", "k") == "v2"
    assert kv.get("ns", "missing") is None
    assert kv.get("missing", "k") is None
    assert kv.namespace("ns") == {"k": "v2", "k2": ""}
    kv.delete("ns", "k")
    kv.delete("ns", "missing")
    kv.delete("missing", "k")
    assert kv.namespace("ns") == {"k2": ""}
    assert kv.namespace("missing") is None


def test_a_namespace_outlives_its_keys() -> None:
    kv = table()
    kv.put("ns", "k", "v")
    kv.delete("ns", "k")
    assert kv.namespace("ns") == {}


def test_the_file_has_the_layout_of_java() -> None:
    kv = table()
    kv.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4;broker-b:4")
    assert kv.encode() == b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4;broker-b:4"}}}'


def test_a_file_is_read_back() -> None:
    kv, copy = table(), table()
    kv.put("ns", 'quote " and \u4e2d', "line\nbreak")
    copy.load(kv.encode())
    assert copy.namespace("ns") == {'quote " and \u4e2d': "line\nbreak"}
    copy.load(b'{ "configTable" : { "n" : {} } }\n')  # as a person might write it
    assert copy.namespace("n") == {}
    assert copy.namespace("ns") is None


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"configTable":[]}', b"x" * (SIZE_MAX + 1)]
)
def test_a_damaged_file_is_an_error_with_a_remedy(content: bytes) -> None:
    with pytest.raises(ConfigError, match="repair it, remove it, or set another kvConfigPath"):
        table().load(content)


def test_the_limit_refuses_and_keeps_what_was() -> None:
    kv = table(size_max=100)
    kv.put("ns", "k", "v")
    with pytest.raises(BrokerError, match="would exceed 100 bytes: delete keys or raise kvSizeMax"):
        kv.put("ns", "k", "v" * 100)
    assert kv.get("ns", "k") == "v"
    with pytest.raises(BrokerError):
        kv.put("x" * 100, "k", "v")
    assert json.loads(kv.encode()) == {"configTable": {"ns": {"k": "v"}}}


def test_the_version_moves_with_every_change() -> None:
    kv = table()
    versions = [kv.version]
    kv.put("ns", "k", "v")
    versions.append(kv.version)
    kv.delete("ns", "k")
    versions.append(kv.version)
    kv.load(b'{"configTable":{}}')
    versions.append(kv.version)
    assert len(set(versions)) == 4
