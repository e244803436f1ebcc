r"""Settings: Java's properties text, and one frozen object per role.

**Properties text** follows ``java.util.Properties``. Bytes are ISO-8859-1; a line ends at ``\n``,
``\r`` or ``\r\n``; ``#`` and ``!`` open a comment; ``=``, ``:`` or a blank ends the key; an odd
number of backslashes at the end continues the line; ``\t \n \r \f \uXXXX`` are escapes, and any
other ``\c`` is ``c``; the last of equal keys wins.

**A config object** is a frozen :class:`Config`, built once and passed down. Each field carries a
:class:`Setting`, from which loading, checking, printing and the reference pages are made::

    class NamesrvConfig(Config, frozen=True, kw_only=True):
        listen_port: Annotated[int, Setting("Port to listen on.", maximum=65535)] = 9876
        kv_config_path: Annotated[
            Path | None,
            Setting("File of the KV table.", template="${user.home}/namesrv/kvConfig.json"),
        ] = None

    config = load(NamesrvConfig, text, overrides={"listenPort": "0"}, variables={...})

The Java name is the camelCase of the attribute unless the setting names another. A field whose
type is itself a :class:`Config` is a section: its settings join the same flat name space, so that
one properties file feeds the parts of a role. Types: bool, int, float, str, Path, enums (by member
name), and ``| None`` of these.

What is wrong is reported whole: the error names every bad key. Unknown keys are logged with the
closest known name and otherwise ignored, as Java does. Nothing here reads the environment or the
disk: values for ``${...}`` come from the caller.
"""

from __future__ import annotations

import difflib
import enum
import functools
import logging
import math
import re
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar, Union, get_args, get_origin

import msgspec

from skylark.core.errors import ConfigError
from skylark.core.java_text import java_double

logger = logging.getLogger(__name__)

TEXT_SIZE_MAX: Final = 1 << 20

_BLANKS: Final = " \t\f"
_LINE_END: Final = re.compile(r"\r\n|\r|\n")
_WHOLE_LINE: Final = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
_KEY_VALUE: Final = re.compile(
    r"(?P<key>(?:\\.|[^\\=: \t\f])*)[ \t\f]*(?:[=:][ \t\f]*)?(?P<value>.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(?:u(?P<hex>[0-9a-fA-F]{4})|(?P<char>.))", re.DOTALL)
_ESCAPED_CHARS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_ESCAPES: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", "\\": "\\\\"}
#: Values of settings ``tls.*`` that ask for no TLS.
_NO_TLS: Final = ("", "false", "disabled")
_VARIABLE: Final = re.compile(r"\$\{([^}]*)\}")
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")
_INT64_MIN: Final = -(1 << 63)
_INT64_MAX: Final = (1 << 63) - 1

Scalar = bool | int | float | str | Path | enum.Enum | None


class InvalidConfigError(ConfigError):
    """One or more settings are wrong; ``problems`` has a sentence for each."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        noun = "setting is" if count == 1 else "settings are"
        super().__init__(f"{count} {noun} wrong: {'; '.join(self.problems)}")


class ReadOnlySettingError(ConfigError):
    """The key may not be changed while running; requests 25 and 318 answer 16 with this text."""

    def __init__(self, key: str) -> None:
        super().__init__("Can not update config in black list.", hint=f"{key} is fixed at start")
        self.key = key


# --- properties text ------------------------------------------------------------------------------


def parse_properties(text: str | bytes) -> dict[str, str]:
    """Read Java properties text; raises ConfigError with the line of what cannot be read."""
    if len(text) > TEXT_SIZE_MAX:
        raise ConfigError(f"properties text of {len(text)} bytes exceeds {TEXT_SIZE_MAX}")
    if isinstance(text, bytes):
        text = text.decode("iso-8859-1")
    properties: dict[str, str] = {}
    for line_number, _, line in _logical_lines(text):
        match = _KEY_VALUE.fullmatch(line)
        assert match is not None, "the pattern matches every line"
        try:
            properties[_unescape(match["key"])] = _unescape(match["value"])
        except ValueError as error:
            raise ConfigError(f"properties text, line {line_number}: {error}") from error
    return properties


def format_properties(properties: Mapping[str, str]) -> str:
    """Write properties text, sorted by key and pure ASCII, that Java and we read back equal."""
    return "".join(
        f"{_escape(key, ' =:#!')}={_escape(value, '')}\n"
        for key, value in sorted(properties.items())
    )


def edit_properties(text: str, changes: Mapping[str, str]) -> str:
    """The same properties text with other values; comments and all other lines stay as they are.

    Keys that it does not have follow at the end. Raises ConfigError as :func:`parse_properties`.
    """
    parse_properties(text)
    lines = _WHOLE_LINE.findall(text)
    left = dict(changes)
    for first, last, line in reversed(list(_logical_lines(text))):  # the last of equal keys counts
        match = _KEY_VALUE.fullmatch(line)
        assert match is not None, "the pattern matches every line"
        key = _unescape(match["key"])
        value = left.pop(key, None)
        if value is not None and value != _unescape(match["value"]):
            lines[first - 1 : last] = [format_properties({key: value})]
    text = "".join(lines)
    if left and text:
        line = text.rstrip("\r\n")
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2  # an empty line ends that
        is_half_an_end = is_continued and text.endswith("\r")  # the first \n would only complete it
        text += "\n" * ((line == text) + is_continued + is_half_an_end)
    return text + format_properties(left)


def _logical_lines(text: str) -> Iterator[tuple[int, int, str]]:
    """Lines without comments and with continuations joined, each with its first and last number."""
    lines = _LINE_END.split(text)
    if not lines[-1]:
        lines.pop()  # what follows the last line end is not a line
    pieces: list[str] = []
    first_number = 0
    continues = False
    for number, line in enumerate(lines, start=1):
        piece = line.lstrip(_BLANKS)
        continues = (len(piece) - len(piece.rstrip("\\"))) % 2 == 1
        if not pieces:  # also after a continuation that has brought nothing yet
            if not piece or piece[0] in "#!":
                continues = False
                continue
            first_number = number
        if not continues:
            yield first_number, number, "".join(pieces) + piece
            pieces.clear()
        elif len(piece) > 1:
            pieces.append(piece[:-1])
    if continues:
        yield first_number, len(lines), "".join(pieces)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    text = _ESCAPE.sub(_unescape_one, text)
    try:  # \uD83D\uDE00 is one character to us, two to Java
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError as error:
        raise ValueError("half of a surrogate pair") from error


def _unescape_one(match: re.Match[str]) -> str:
    if (code := match["hex"]) is not None:
        return chr(int(code, 16))
    char = match["char"]
    if char == "u":
        raise ValueError("\\u without four hexadecimal digits")
    return _ESCAPED_CHARS.get(char, char)


def _escape(text: str, special: str) -> str:
    out: list[str] = []
    for index, char in enumerate(text):
        if char in _ESCAPES:
            out.append(_ESCAPES[char])
        elif char in special or (char == " " and index == 0):
            out.append("\\" + char)
        elif " " <= char <= "~":
            out.append(char)
        else:
            units = char.encode("utf-16-be", "surrogatepass").hex().upper()
            out.extend(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
    return "".join(out)


# --- declarations ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Setting:
    """What ``Annotated`` says about a field: one sentence, and its name, unit and limits."""

    doc: str
    _: KW_ONLY
    java: str | None = None  # Java property name, if not the camelCase of the attribute
    unit: str | None = None  # "ms", "bytes", ...
    minimum: float | None = None
    maximum: float | None = None
    template: str | None = None  # default with ${variables}; without them the field's own default


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all config objects: checked whole, also when built directly.

    Subclasses repeat ``frozen=True, kw_only=True`` and may override :meth:`check`.
    """

    def __post_init__(self) -> None:
        problems = [
            f"{info.java}: {problem}"
            for info in own_settings(type(self))
            if (problem := info.problem(getattr(self, info.name))) is not None
        ]
        problems = problems or list(self.check())
        if problems:
            raise InvalidConfigError(problems)

    def check(self) -> Iterable[str]:
        """Sentences on settings that contradict each other; runs once each is right by itself."""
        return ()


ConfigT = TypeVar("ConfigT", bound=Config)


@dataclass(frozen=True, slots=True)
class SettingInfo:
    """One setting of a config type, resolved; the rows of the reference pages."""

    name: str  # attribute
    java: str
    section: tuple[str, ...]  # attributes that lead from the config object to the owner
    kind: type[bool | int | float | str | Path | enum.Enum]
    optional: bool
    required: bool
    default: Scalar
    declared: Setting

    @property
    def type_text(self) -> str:
        """The type in words, for people."""
        if issubclass(self.kind, enum.Enum):
            return "one of " + ", ".join(member.name for member in self.kind)
        names = {bool: "boolean", int: "integer", float: "number", str: "text", Path: "path"}
        return names[self.kind]

    @property
    def default_text(self) -> str | None:
        """The default as properties text; the template where there is one."""
        if self.declared.template is not None:
            return self.declared.template
        return None if self.required else format_value(self.default)

    def parse(self, text: str, variables: Mapping[str, str]) -> Scalar:
        """The value of a text; raises ValueError with the reason."""
        text = text.strip()  # Java keeps trailing blanks, and then ignores the setting in silence
        if self.optional and not text and self.kind is not str:
            return None
        if issubclass(self.kind, enum.Enum):
            if text not in self.kind.__members__:
                raise ValueError(f"{text!r} is not {self.type_text}")
            return self.kind[text]
        if self.kind is Path:
            return Path(expand(text, variables))
        value = _SCALAR_PARSERS[self.kind](text)
        if value is None:
            raise ValueError(f"{text!r} is not {_an(self.type_text)}")
        return value

    def problem(self, value: object) -> str | None:
        """Why a value of this setting is not acceptable, if so."""
        if value is None and self.optional:
            return None
        accepted = (int, float) if self.kind is float else self.kind
        if not isinstance(value, accepted) or (self.kind is not bool and isinstance(value, bool)):
            return f"{value!r} is not {_an(self.type_text)}"
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        if not math.isfinite(value):
            return f"{value} is not a finite number"
        minimum, maximum = self.declared.minimum, self.declared.maximum
        if minimum is not None and value < minimum:
            return f"{value} is below {minimum}"
        if maximum is not None and value > maximum:
            return f"{value} is above {maximum}"
        return None


@functools.cache
def settings(config_type: type[Config]) -> tuple[SettingInfo, ...]:
    """All settings of a config type and its sections, in order of declaration."""
    found: list[SettingInfo] = []
    for field in _fields(config_type):
        if isinstance(field.type, type) and issubclass(field.type, Config):
            found.extend(_section_settings(field))
        else:
            found.append(_setting_info(config_type, field))
    names = [info.java for info in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise TypeError(f"{config_type.__name__}: declared twice: {', '.join(sorted(twice))}")
    return tuple(found)


@functools.cache
def _fields(config_type: type[Config]) -> tuple[msgspec.structs.FieldInfo, ...]:
    """The fields of a config type; cached, because msgspec computes them each time, slowly."""
    return msgspec.structs.fields(config_type)


def own_settings(config_type: type[Config]) -> tuple[SettingInfo, ...]:
    """The settings of a config type without those of its sections."""
    return tuple(info for info in settings(config_type) if not info.section)


def _section_settings(field: msgspec.structs.FieldInfo) -> Iterator[SettingInfo]:
    """The settings of a section; the role's own instance of it may bring other defaults."""
    for info in settings(field.type):
        section = (field.name, *info.section)
        if field.required:
            yield replace(info, section=section)
        else:
            default = _value(_default(field), (*info.section, info.name))
            yield replace(info, section=section, default=default, required=False)


def _setting_info(config_type: type[Config], field: msgspec.structs.FieldInfo) -> SettingInfo:
    where = f"{config_type.__name__}.{field.name}"
    declared: Setting | None = None
    hint = field.type
    if get_origin(hint) is Annotated:
        hint, *extras = get_args(hint)
        declared = next((extra for extra in extras if isinstance(extra, Setting)), None)
    if declared is None:
        raise TypeError(f"{where}: not declared as Annotated[..., Setting(...)]")
    optional = get_origin(hint) in (types.UnionType, Union)
    if optional:
        members = [member for member in get_args(hint) if member is not type(None)]
        hint = members[0] if len(members) == 1 else None
    known = isinstance(hint, type) and (
        hint in _SCALAR_PARSERS or hint is Path or issubclass(hint, enum.Enum)
    )
    if not known:
        raise TypeError(f"{where}: {field.type!r} is not a type of setting")
    return SettingInfo(
        name=field.name,
        java=declared.java or _camel_case(field.name),
        section=(),
        kind=hint,
        optional=optional,
        required=field.required,
        default=None if field.required else _default(field),
        declared=declared,
    )


# --- loading, changing, printing ------------------------------------------------------------------


def load(
    config_type: type[ConfigT],
    source: str | bytes | Mapping[str, str] = "",
    overrides: Mapping[str, str] | None = None,
    *,
    variables: Mapping[str, str] | None = None,
) -> ConfigT:
    """Build a config object from properties text (or a mapping) and overriding keys.

    ``variables`` fill ``${name}`` in templates and in path values. Raises InvalidConfigError that
    names every bad key; unknown keys are only logged.
    """
    variables = variables or {}
    texts = {**_as_mapping(source), **(overrides or {})}
    values: dict[tuple[str, ...], Scalar] = {}
    for info in settings(config_type):
        if not info.required:
            values[*info.section, info.name] = info.default
        template = info.declared.template
        if template is not None and set(_VARIABLE.findall(template)) <= variables.keys():
            texts.setdefault(info.java, expand(template, variables))
    return _apply(config_type, values, texts, variables)


def with_changes(
    config: ConfigT,
    changes: str | bytes | Mapping[str, str],
    *,
    black_list: Collection[str] = (),
    variables: Mapping[str, str] | None = None,
) -> ConfigT:
    """A copy with some settings changed, for the run-time update requests (25 and 318).

    A key on the black list refuses the whole change with ReadOnlySettingError; so does a bad
    value with InvalidConfigError. Unknown keys are logged and ignored.
    """
    texts = _as_mapping(changes)
    for key in texts:
        if key in black_list:
            raise ReadOnlySettingError(key)
    paths = [(*info.section, info.name) for info in settings(type(config))]
    values = {path: _value(config, path) for path in paths}
    return _apply(type(config), values, texts, variables or {})


def to_mapping(config: Config) -> dict[str, str]:
    """Java names and texts of all settings that have a value."""
    return {
        info.java: text
        for info in settings(type(config))
        if (text := format_value(_value(config, (*info.section, info.name)))) is not None
    }


def to_properties(config: Config) -> str:
    """All settings as sorted ``key=value`` lines, not escaped: requests 26 and 319, and ``-p``."""
    return "".join(f"{key}={value}\n" for key, value in sorted(to_mapping(config).items()))


def unknown_keys(config_type: type[Config], keys: Iterable[str]) -> dict[str, str | None]:
    """Keys that no setting has, each with the closest known name."""
    known = {info.java for info in settings(config_type)}
    return {
        key: next(iter(difflib.get_close_matches(key, known, n=1, cutoff=0.75)), None)
        for key in keys
        if key not in known
    }


def tls_problem(key: str, value: str) -> str | None:
    """Why a setting of Java's TLS cannot be ignored, or None.

    Whoever writes one of them must not get a server that speaks in the clear.
    """
    if not key.startswith("tls.") or value.strip().lower() in _NO_TLS:
        return None
    return f"{key}: TLS is not built yet; leave out the settings tls.*, or protect the network"


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace every ``${name}``; raises ValueError for a name that is not among the variables."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in variables:
            raise ValueError(f"{match[0]} is not known here")
        return variables[match[1]]

    return _VARIABLE.sub(value, text)


def format_value(value: Scalar) -> str | None:
    """A value as Java prints it; None has no text."""
    if value is None:
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return value.name
    return java_double(value) if isinstance(value, float) else str(value)


def _apply(
    config_type: type[ConfigT],
    values: dict[tuple[str, ...], Scalar],
    texts: Mapping[str, str],
    variables: Mapping[str, str],
) -> ConfigT:
    """Parse the texts over the values and build the object, or report all that is wrong."""
    problems: list[str] = []
    for key, closest in unknown_keys(config_type, texts).items():
        if (problem := tls_problem(key, texts[key])) is not None:
            problems.append(problem)
            continue
        logger.warning(
            "unknown setting %s is ignored%s", key, f"; did you mean {closest}?" if closest else ""
        )
    for info in settings(config_type):
        path = (*info.section, info.name)
        if info.java in texts:
            try:
                values[path] = info.parse(texts[info.java], variables)
            except ValueError as error:
                problems.append(f"{info.java}: {error}")
                continue
        problem = info.problem(values[path]) if path in values else "has no default and is missing"
        if problem is not None:
            problems.append(f"{info.java}: {problem}")
    if problems:
        raise InvalidConfigError(problems)
    return _build(config_type, (), values)


def _build(
    config_type: type[ConfigT], section: tuple[str, ...], values: Mapping[tuple[str, ...], Scalar]
) -> ConfigT:
    arguments: dict[str, Config | Scalar] = {}
    for field in _fields(config_type):
        path = (*section, field.name)
        is_section = path not in values
        arguments[field.name] = _build(field.type, path, values) if is_section else values[path]
    return config_type(**arguments)


def _value(config: Config, path: tuple[str, ...]) -> Scalar:
    value: Any = config
    for name in path:
        value = getattr(value, name)
    found: Scalar = value
    return found


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return field.default_factory()


def _as_mapping(source: str | bytes | Mapping[str, str]) -> dict[str, str]:
    return parse_properties(source) if isinstance(source, str | bytes) else dict(source)


def _camel_case(name: str) -> str:
    head, *tail = name.split("_")
    return head + "".join(word[:1].upper() + word[1:] for word in tail)


def _an(noun: str) -> str:
    if noun.startswith("one of") or noun == "text":
        return noun
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def _parse_bool(text: str) -> bool | None:
    return {"true": True, "false": False}.get(text.lower())


def _parse_int(text: str) -> int | None:
    if not _INTEGER.fullmatch(text):
        return None
    value = int(text)
    return value if _INT64_MIN <= value <= _INT64_MAX else None


def _parse_float(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and "_" not in text else None


_SCALAR_PARSERS: Final[Mapping[type, Callable[[str], Scalar]]] = {
    bool: _parse_bool,
    int: _parse_int,
    float: _parse_float,
    str: str,
}
