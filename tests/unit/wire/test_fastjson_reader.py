"""The dialect reader: what fastjson writes beyond JSON, references, limits."""

from __future__ import annotations

import math

import pytest

from skylark.core.errors import RemoteProtocolError
from skylark.wire.fastjson_reader import DEPTH_MAX, NUMERAL_SIZE_MAX, ObjectKey, parse

QUEUE_0 = ObjectKey((("brokerName", "b"), ("queueId", 0), ("topic", "T")))
QUEUE_1 = ObjectKey((("brokerName", "b"), ("queueId", 1), ("topic", "T")))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[1,-2,true,false,null,"x"]}', {"a": [1, -2, True, False, None, "x"]}),
        (' { "a" : [ 1 , 2 ] , "b" : { } } \r\n\t', {"a": [1, 2], "b": {}}),
        ("[]", []),
        ('"text"', "text"),
        ("1.0E10", 1e10),
        ("-2.5e-9", -2.5e-9),
        ("1E3", 1000.0),
        ('{"a":1,"a":2}', {"a": 2}),
        (r'"\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00"', '"\\/\b\f\n\r\t\u00e9\U0001f600'),
        ('"raw\ttab and newline\n"', "raw\ttab and newline\n"),
    ],
)
def test_plain_json(text: str, value: object) -> None:
    assert parse(text) == value
    assert parse(text.encode()) == value


@pytest.mark.spec("remoting.10.12")
def test_keys_that_are_not_json() -> None:
    assert parse('{0:"a",-1:"b"}') == {0: "a", -1: "b"}
    assert parse('{"0":"a"}') == {"0": "a"}
    assert parse(
        '{{"brokerName":"b","queueId":0,"topic":"T"}:1,{"topic":"T","queueId":1,"brokerName":"b"}:2}'
    ) == {QUEUE_0: 1, QUEUE_1: 2}


@pytest.mark.spec("remoting.10.12")
def test_references() -> None:
    assert parse('[{"a":1},{"$ref":"$[0]"}]') == [{"a": 1}, {"a": 1}]
    assert parse('{"a":[{"b":{"c":3}}],"d":{"$ref":"$.a[0].b"}}')["d"] == {"c": 3}
    assert parse('{"m":{7:{"x":1}},"d":{"$ref":"$.m.7"}}')["d"] == {"x": 1}
    assert parse('{"d":{"$ref":"$.later"},"later":[1]}')["d"] == [1]
    # as fastjson 1.2 escapes it, once for the path and once for the string
    assert parse(r'{"%RETRY%g-1":{"x":1},"y":{"$ref":"$.\\%RETRY\\%g\\-1"}}')["y"] == {"x": 1}


def test_references_to_containers_around() -> None:
    root = parse('{"a":{"self":{"$ref":"@"},"up":{"$ref":".."},"root":{"$ref":"$"}}}')
    assert root["a"]["self"] is root["a"]
    assert root["a"]["up"] is root
    assert root["a"]["root"] is root


def test_references_as_keys() -> None:
    text = '{"q":{"brokerName":"b","queueId":0,"topic":"T"},"t":{{"$ref":"$.q"}:5}}'
    assert parse(text)["t"] == {QUEUE_0: 5}


def test_references_to_references() -> None:
    assert parse('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":[1]}') == {
        "a": [1],
        "b": [1],
        "c": [1],
    }
    assert parse('{"c":{"x":{"y":1}},"a":{"$ref":"$.c"},"b":{"$ref":"$.a.x"}}')["b"] == {"y": 1}


@pytest.mark.parametrize(
    "path",
    [
        "$.missing",
        "$.list[9]",
        "$.list.x",
        "$.table.cid.null",
        "$..x",
        "$[",
        "$x",
        "up",
        "",
        "../..",
    ],
)
def test_dead_references_are_left_out(path: str) -> None:
    text = f'{{"list":[1,{{"$ref":"{path}"}},2],"dead":{{"$ref":"{path}"}},"table":{{"cid":1}}}}'
    assert parse(text) == {"list": [1, 2], "table": {"cid": 1}}
    assert parse(f'{{"t":{{{{"$ref":"{path}"}}:5,"k":6}}}}') == {"t": {"k": 6}}


def test_indices_count_dead_references_too() -> None:
    assert parse('{"l":[{"$ref":"$.no"},["x"]],"m":{"$ref":"$.l[1]"}}') == {
        "l": [["x"]],
        "m": ["x"],
    }


def test_cyclic_references_are_left_out() -> None:
    assert parse('{"a":{"$ref":"$.b"},"b":{"$ref":"$.a"},"c":1}') == {"c": 1}
    assert parse('{"a":{"$ref":"$.a"},"c":1}') == {"c": 1}


def test_a_long_chain_of_references_is_cut() -> None:
    links = ",".join(f'"r{i}":{{"$ref":"$.r{i + 1}"}}' for i in range(100))
    found = parse(f'{{{links},"r100":[1]}}')
    assert "r0" not in found
    assert found["r99"] == [1]


def test_resolving_is_linear() -> None:
    """Each of 15 references goes ten times through the one before: 10**15 steps if not kept."""
    chain = ['"s0":{"$ref":"@"}']
    chain += [f'"s{i}":{{"$ref":"$.c{f".s{i - 1}" * 10}"}}' for i in range(1, 15)]
    root = parse(f'{{"c":{{{",".join(chain)}}}}}')
    assert root["c"]["s14"] is root["c"]


def test_only_an_object_with_nothing_else_is_a_reference() -> None:
    assert parse('{"$ref":"$.a","x":1}') == {"$ref": "$.a", "x": 1}
    assert parse('{"$ref":1}') == {"$ref": 1}


def test_half_a_surrogate_pair_becomes_a_question_mark() -> None:
    assert parse(r'"a\ud800b"') == "a?b"


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "{",
        "[1",
        "[1,]",
        "{,}",
        '{"a"}',
        '{"a":}',
        '{"a":1,}',
        "[1 2]",
        "{}{}",
        "tru",
        "+1",
        "1.",
        ".5",
        "-",
        "NaN",
        "'a'",
        '"open',
        r'"\x41"',
        r'"\u12"',
        "{a:1}",
        "{1.5:1}",
        "{true:1}",
        "{null:1}",
        "{[1]:1}",
        '{{"a":[1]}:1}',
        '{{"a":{}}:1}',
        "{{0:1}:1}",
        '{{{"a":1}:1}:1}',
        '{"$ref":"$"}',
    ],
)
def test_malformed(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        parse(text)


def test_not_utf_8() -> None:
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        parse(b'"\xff"')


def test_limits() -> None:
    assert parse("[" * DEPTH_MAX + "]" * DEPTH_MAX) is not None
    with pytest.raises(RemoteProtocolError, match="nesting"):
        parse("[" * (DEPTH_MAX + 1) + "]" * (DEPTH_MAX + 1))
    with pytest.raises(RemoteProtocolError, match="nesting"):
        parse("{" * 100_000)

    assert parse("9" * NUMERAL_SIZE_MAX) == int("9" * NUMERAL_SIZE_MAX)
    for numeral in ("9" * (NUMERAL_SIZE_MAX + 1), "1." + "0" * NUMERAL_SIZE_MAX):
        for text in (numeral, f"[{numeral}]"):
            with pytest.raises(RemoteProtocolError, match="number"):
                parse(text)
    with pytest.raises(RemoteProtocolError, match="number"):
        parse("{" + "9" * 5000 + ":1}")
    assert math.isinf(parse("1e999"))

    assert parse("[1]", size_max=3) == [1]
    with pytest.raises(RemoteProtocolError, match="limit"):
        parse("[1] ", size_max=3)

    many = ",".join(f'"m{i}":1' for i in range(17))
    with pytest.raises(RemoteProtocolError, match="key"):
        parse(f"{{{{{many}}}:1}}")
