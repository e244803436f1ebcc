"""Spark types of decoded bodies: from Avro schemas, Protobuf descriptors, or in Spark's words.

========================================  ========================================================
``valueSchema`` of                        is
========================================  ========================================================
``json``                                  ``uid string, amount int``, or the JSON of a StructType
``avro``                                  an Avro schema; a record
``protobuf``                              a descriptor set of ``protoc``
========================================  ========================================================

All fields are nullable. A schema that has no counterpart in Spark (a union of several types, a
message that holds itself) is a ConfigError that names the field.
"""

from __future__ import annotations

import datetime
import decimal
import re
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, TypedDict

import msgspec
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from skylark.core.errors import ConfigError

_SIMPLE: Final[dict[str, DataType]] = {
    "string": StringType(),
    "binary": BinaryType(),
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "date": DateType(),
    "timestamp": TimestampType(),
}
_TOKEN: Final = re.compile(r"\s*(`[^`]+`|[A-Za-z_]\w*|\d+|[<>,:()])")
_TYPES_HINT: Final = f"types are {', '.join(_SIMPLE)}, decimal(p,s), array<>, map<,> and struct<>"


def value_type(name: str, schema: bytes, message: str | None = None) -> StructType:
    """The type of the values of a format; raises ConfigError."""
    if name == "avro":
        return _avro_struct(schema)
    if name == "protobuf":
        from skylark.client.decode.protobuf_decoder import find_message

        return _message_struct(find_message(schema, message), ())
    return struct_of_text(schema.decode("utf-8", "replace"))


# ---- Spark's own words ---------------------------------------------------------------------------


def struct_of_text(text: str) -> StructType:
    """Parse ``uid string, amount int``, or the JSON of a StructType; raises ConfigError.

    Spark's own parser is in Java, which the processes of a Python source cannot call.
    """
    if text.lstrip().startswith("{"):
        try:
            return StructType.fromJson(msgspec.json.decode(text))
        except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"the schema is no JSON of a StructType: {error!r}") from None
    tokens = _tokens(text)
    found = _fields(tokens, end=None)
    if not found.fields:
        raise ConfigError("the schema has no fields", hint='such as "uid string, amount int"')
    return found


def _tokens(text: str) -> Iterator[str]:
    at = 0
    text = text.rstrip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise ConfigError(f"the schema cannot be read at {text[at : at + 20]!r}")
        yield found[1]
        at = found.end()
    yield ""


def _fields(tokens: Iterator[str], end: str | None) -> StructType:
    fields: list[StructField] = []
    while True:
        name = next(tokens)
        if not name or not (name[0].isalpha() or name[0] in "_`"):
            raise ConfigError(f"the schema has {name or 'nothing'!r} in place of a name")
        kind = next(tokens)
        if kind == ":":
            kind = next(tokens)
        data_type, following = _type(kind, tokens)
        fields.append(StructField(name.strip("`"), data_type))
        if following == (end or ""):
            return StructType(fields)
        if following != ",":
            raise ConfigError(f"the schema has {following or 'its end'!r} in place of a comma")


def _type(name: str, tokens: Iterator[str]) -> tuple[DataType, str]:
    """A type, and the token after it."""
    kind = name.lower()
    if kind in _SIMPLE:
        return _SIMPLE[kind], next(tokens)
    if kind == "decimal":
        parts = [next(tokens, "") for _ in range(5)]
        if parts[0] + parts[2] + parts[4] != "(,)" or not (parts[1] + parts[3]).isdigit():
            raise ConfigError("a decimal is written as decimal(10,2)")
        return DecimalType(int(parts[1]), int(parts[3])), next(tokens)
    if kind in ("array", "map", "struct"):
        _expect(next(tokens), "<")
        if kind == "struct":
            return _fields(tokens, ">"), next(tokens)
        element, following = _type(next(tokens), tokens)
        if kind == "array":
            _expect(following, ">")
            return ArrayType(element), next(tokens)
        _expect(following, ",")
        value, following = _type(next(tokens), tokens)
        _expect(following, ">")
        return MapType(element, value), next(tokens)
    raise ConfigError(f"the schema has an unknown type {name!r}", hint=_TYPES_HINT)


def _expect(found: str, wanted: str) -> None:
    if found != wanted:
        raise ConfigError(f"the schema has {found or 'its end'!r} in place of {wanted!r}")


# ---- Avro ----------------------------------------------------------------------------------------

_AVRO_SIMPLE: Final[dict[str, DataType]] = {
    "string": StringType(),
    "bytes": BinaryType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "enum": StringType(),
    "fixed": BinaryType(),
}
_AVRO_LOGICAL: Final[dict[str, DataType]] = {
    "date": DateType(),
    "timestamp-millis": TimestampType(),
    "timestamp-micros": TimestampType(),
}


def _avro_struct(text: bytes) -> StructType:
    from skylark.client.decode.avro_decoder import parse_schema

    schema = parse_schema(text)
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise ConfigError("the Avro schema is not a record", hint="only records are columns")
    found = _avro_type(schema, "value", {})
    assert isinstance(found, StructType), "a record is a struct"
    return found


def _avro_type(schema: Any, place: str, named: dict[str, DataType | None]) -> DataType:
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise ConfigError(f"{place} is a union of {len(others)} types, and must have one")
        return _avro_type(others[0], place, named)
    if isinstance(schema, str):
        if schema in _AVRO_SIMPLE:
            return _AVRO_SIMPLE[schema]
        if (known := named.get(schema)) is not None:
            return known
        raise ConfigError(f"{place} is {schema}, which Spark has no type for")
    kind, logical = schema["type"], schema.get("logicalType")
    if logical == "decimal":
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if logical is not None and logical not in _AVRO_LOGICAL:
        raise ConfigError(f"{place} has the logical type {logical}, which cannot be read")
    if logical is not None:
        return _AVRO_LOGICAL[logical]
    if kind == "record":
        named[schema["name"]] = None  # a record that holds itself has no type in Spark
        found: DataType = StructType(
            [
                StructField(
                    each["name"], _avro_type(each["type"], f"{place}.{each['name']}", named)
                )
                for each in schema["fields"]
            ]
        )
        named[schema["name"]] = found
        return found
    if kind == "array":
        return ArrayType(_avro_type(schema["items"], f"{place}[]", named))
    if kind == "map":
        return MapType(StringType(), _avro_type(schema["values"], f"{place}{{}}", named))
    if kind in ("enum", "fixed"):
        named[schema["name"]] = _AVRO_SIMPLE[kind]
    return _avro_type(kind, place, named)


# ---- Protobuf ------------------------------------------------------------------------------------

_PROTOBUF_TYPES: Final[dict[int, DataType]] = {
    1: DoubleType(),
    2: FloatType(),
    3: LongType(),  # int64
    4: DecimalType(20, 0),  # uint64
    5: IntegerType(),  # int32
    6: DecimalType(20, 0),  # fixed64
    7: LongType(),  # fixed32
    8: BooleanType(),
    9: StringType(),
    12: BinaryType(),
    13: LongType(),  # uint32
    14: StringType(),  # an enumeration, by name
    15: IntegerType(),  # sfixed32
    16: LongType(),  # sfixed64
    17: IntegerType(),  # sint32
    18: LongType(),  # sint64
}


def _message_struct(message: Any, parents: tuple[str, ...]) -> StructType:
    if message.full_name in parents:
        raise ConfigError(f"message {message.full_name} holds itself, and Spark has no such type")
    parents = (*parents, message.full_name)
    return StructType(
        [StructField(field.name, _field_type(field, parents)) for field in message.fields]
    )


def _field_type(field: Any, parents: tuple[str, ...]) -> DataType:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        entry = message.fields_by_name
        return MapType(_field_type(entry["key"], parents), _field_type(entry["value"], parents))
    if message is not None:
        one: DataType = _message_struct(message, parents)
    elif field.type in _PROTOBUF_TYPES:
        one = _PROTOBUF_TYPES[field.type]
    else:
        raise ConfigError(f"field {field.full_name} is of a kind that cannot be read")
    return ArrayType(one) if field.is_repeated else one


# ---- checking JSON -------------------------------------------------------------------------------

_INTEGERS: Final = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_PYTHON: Final[dict[type[DataType], Any]] = {
    StringType: str,
    BinaryType: bytes,
    BooleanType: bool,
    FloatType: float,
    DoubleType: float,
    DateType: datetime.date,
    TimestampType: datetime.datetime,
    DecimalType: decimal.Decimal,
}


def json_type(data_type: DataType) -> Any:
    """The Python type by which msgspec checks JSON for a Spark type; every value may be null."""
    kind = type(data_type)
    if kind in _INTEGERS:
        bits = _INTEGERS[kind]
        limits = msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)
        return Annotated[int, limits] | None
    if isinstance(data_type, StructType):
        fields = {field.name: json_type(field.dataType) for field in data_type}
        return TypedDict("Value", fields, total=False) | None  # type: ignore[operator]
    if isinstance(data_type, ArrayType):
        return list[json_type(data_type.elementType)] | None  # type: ignore[misc]
    if isinstance(data_type, MapType):
        return dict[str, json_type(data_type.valueType)] | None  # type: ignore[misc]
    if kind not in _PYTHON:
        raise ConfigError(f"JSON cannot be read as {data_type.simpleString()}", hint=_TYPES_HINT)
    return _PYTHON[kind] | None


def arrow_ready(data_type: DataType) -> Callable[[Any], Any] | None:
    """What makes a value ready for pyarrow, which takes maps as pairs; None: nothing to do."""
    if isinstance(data_type, MapType):
        inner = arrow_ready(data_type.valueType) or (lambda value: value)
        return lambda value: (
            None if value is None else [(key, inner(each)) for key, each in value.items()]
        )
    if isinstance(data_type, ArrayType):
        element = arrow_ready(data_type.elementType)
        if element is None:
            return None
        return lambda value: None if value is None else [element(each) for each in value]
    if isinstance(data_type, StructType):
        inner_fields = {field.name: arrow_ready(field.dataType) for field in data_type}
        changed = {name: ready for name, ready in inner_fields.items() if ready is not None}
        if not changed:
            return None
        return lambda value: (
            None
            if value is None
            else {**value, **{name: ready(value.get(name)) for name, ready in changed.items()}}
        )
    return None
