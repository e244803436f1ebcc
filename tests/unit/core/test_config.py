"""core/config.py: properties text by Java's rules, and config objects built from it."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from skylark.core import config as config_module
from skylark.core.config import (
    Config,
    InvalidConfigError,
    ReadOnlySettingError,
    Setting,
    edit_properties,
    expand,
    format_properties,
    format_value,
    load,
    own_settings,
    parse_properties,
    settings,
    to_mapping,
    to_properties,
    unknown_keys,
    with_changes,
)
from skylark.core.errors import ConfigError

# Pairs of text and result as java.util.Properties.load gives them.
JAVA_TEXTS = [
    ("a=b", {"a": "b"}),
    ("a = b", {"a": "b"}),
    ("a:b", {"a": "b"}),
    ("a b c", {"a": "b c"}),
    ("a\t\f =\t b ", {"a": "b "}),
    ("a", {"a": ""}),
    ("a=", {"a": ""}),
    ("=b", {"": "b"}),
    ("a==b", {"a": "=b"}),
    ("a =: b", {"a": ": b"}),
    ("a  :  b=c:d", {"a": "b=c:d"}),
    ("# c\n! d\n  # e\n\n \t\na=b", {"a": "b"}),
    ("a=b # not a comment", {"a": "b # not a comment"}),
    ("a=1\na=2", {"a": "2"}),
    ("a=1\rb=2\r\nc=3\n\rd=4", {"a": "1", "b": "2", "c": "3", "d": "4"}),
    ("a=b\\\n   c", {"a": "bc"}),
    ("a=b\\\r\n\tc\\\rd", {"a": "bcd"}),
    ("a\\\n  b=c", {"ab": "c"}),
    ("a=b\\\\\nc=d", {"a": "b\\", "c": "d"}),
    ("a=b\\\\\\\nc=d", {"a": "b\\c=d"}),
    ("a=b\\\n# c", {"a": "b# c"}),
    ("a=b\\\n\nc=d", {"a": "b", "c": "d"}),
    ("# comment \\\na=b", {"a": "b"}),
    ("\\\n# comment\n\\\n\na=b", {"a": "b"}),
    ("\\\n  a=b", {"a": "b"}),
    ("a=b\\", {"a": "b"}),
    ("a\\ b\\=c\\:d=e", {"a b=c:d": "e"}),
    ('a=\\t\\n\\r\\f\\\\\\z\\b\\"', {"a": '\t\n\r\f\\zb"'}),
    ("a=\\ b", {"a": " b"}),
    ("\\u0061=\\u00e9\\u4F60", {"a": "é你"}),
    ("a=\\uD83D\\uDE00!", {"a": "😀!"}),
    ("a=\\\\u0061", {"a": "\\u0061"}),
    ("a=x\x85y\u2028z", {"a": "x\x85y\u2028z"}),
]


@pytest.mark.parametrize(("text", "expected"), JAVA_TEXTS)
def test_properties_text_as_java_reads_it(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_bytes_are_iso_8859_1() -> None:
    assert parse_properties("grüße=ä".encode("iso-8859-1")) == {"grüße": "ä"}
    assert parse_properties("a=ä".encode()) == {"a": "Ã¤"}


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\u12g4", "\\u=x", "a=\\uD83D", "a=\\uDE00\\uD83D"])
def test_malformed_escape_names_the_line(text: str) -> None:
    with pytest.raises(ConfigError, match="properties text, line 3: "):
        parse_properties(f"# one\nb=2\n{text}\n")


def test_text_size_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_module, "TEXT_SIZE_MAX", 8)
    assert parse_properties("a=" + "b" * 6) == {"a": "b" * 6}
    with pytest.raises(ConfigError, match="of 9 bytes exceeds 8"):
        parse_properties("a=" + "b" * 7)


def test_writer_escapes_what_the_reader_needs() -> None:
    written = format_properties({"b": " x = \\ :\n", "a #=": "é😀", "": "c"})
    assert written == "=c\na\\ \\#\\==\\u00E9\\uD83D\\uDE00\nb=\\ x = \\\\ :\\n\n"
    assert parse_properties(written) == {"b": " x = \\ :\n", "a #=": "é😀", "": "c"}


class FlushDiskType(enum.Enum):
    SYNC_FLUSH = 0
    ASYNC_FLUSH = 1


class StoreConfig(Config, frozen=True, kw_only=True):
    flush_disk_type: Annotated[FlushDiskType, Setting("When a send is durable.")] = (
        FlushDiskType.ASYNC_FLUSH
    )
    mapped_file_size: Annotated[
        int, Setting("Size of a log file.", java="mappedFileSizeCommitLog", unit="bytes", minimum=1)
    ] = 1 << 30
    root: Annotated[
        Path | None,
        Setting("Folder.", java="storePathRootDir", template="${user.home}/store"),
    ] = None


class ServerConfig(Config, frozen=True, kw_only=True):
    listen_port: Annotated[int, Setting("Port.", minimum=0, maximum=65535)] = 8888
    bind_address: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"


class BrokerConfig(Config, frozen=True, kw_only=True):
    broker_name: Annotated[str, Setting("Name of the broker.")]
    broker_id: Annotated[int, Setting("0 is the master.", minimum=0)] = 0
    ratio: Annotated[float, Setting("A share.", minimum=0.0, maximum=1e9)] = 0.8
    slave_read_enable: Annotated[bool, Setting("Whether slaves serve pulls.")] = False
    ha_listen_port: Annotated[int | None, Setting("Port of replication.")] = None
    zone: Annotated[str | None, Setting("Zone.")] = None
    server: ServerConfig = ServerConfig(listen_port=10911)
    store: StoreConfig = msgspec.field(default_factory=StoreConfig)

    def check(self) -> list[str]:
        if self.ha_listen_port == self.server.listen_port:
            return ["haListenPort: equal to listenPort"]
        return []


def test_defaults() -> None:
    config = load(BrokerConfig, {"brokerName": "a"})
    assert config == BrokerConfig(broker_name="a")
    assert config.server.listen_port == 10911  # the role's own default for the section
    assert config.server.bind_address == "127.0.0.1"
    assert config.store.root is None


def test_loads_every_type_and_overrides_win() -> None:
    config = load(
        BrokerConfig,
        "brokerName = broker-a\nbrokerId=+3\nratio=2.5e-1\nslaveReadEnable=TRUE\nlistenPort=1\n"
        "flushDiskType=SYNC_FLUSH\nmappedFileSizeCommitLog= 1048576 \nhaListenPort=12\n"
        "storePathRootDir=${user.home}/x\nzone=\n",
        {"listenPort": "20911"},
        variables={"user.home": "/h/me"},
    )
    assert config == BrokerConfig(
        broker_name="broker-a",
        broker_id=3,
        ratio=0.25,
        slave_read_enable=True,
        ha_listen_port=12,
        zone="",
        server=ServerConfig(listen_port=20911),
        store=StoreConfig(
            flush_disk_type=FlushDiskType.SYNC_FLUSH,
            mapped_file_size=1048576,
            root=Path("/h/me/x"),
        ),
    )


def test_blank_means_no_value_for_optional_settings() -> None:
    config = load(BrokerConfig, "brokerName=a\nhaListenPort=\nstorePathRootDir=  ")
    assert config.ha_listen_port is None
    assert config.store.root is None


def test_templates_need_their_variables() -> None:
    given = {"brokerName": "a"}
    assert load(StoreConfig, variables={"user.home": "/h"}).root == Path("/h/store")
    assert load(StoreConfig).root is None
    assert load(BrokerConfig, given, variables={"user.home": "/h"}).store.root == Path("/h/store")
    with pytest.raises(InvalidConfigError, match=r"storePathRootDir: \$\{HOME\} is not known here"):
        load(StoreConfig, {"storePathRootDir": "${HOME}/store"}, variables={"user.home": "/h"})
    assert expand("${a}-${b}", {"a": "1", "b": "2"}) == "1-2"


def test_every_bad_key_is_named() -> None:
    with pytest.raises(InvalidConfigError) as raised:
        load(
            BrokerConfig,
            "brokerId=-1\nratio=nan\nslaveReadEnable=yes\nlistenPort=65536\n"
            "flushDiskType=sync\nmappedFileSizeCommitLog=1_000\nhaListenPort=99999999999999999999",
        )
    assert raised.value.problems == (
        "brokerName: has no default and is missing",
        "brokerId: -1 is below 0",
        "ratio: 'nan' is not a number",
        "slaveReadEnable: 'yes' is not a boolean",
        "haListenPort: '99999999999999999999' is not an integer",
        "listenPort: 65536 is above 65535",
        "flushDiskType: 'sync' is not one of SYNC_FLUSH, ASYNC_FLUSH",
        "mappedFileSizeCommitLog: '1_000' is not an integer",
    )
    assert str(raised.value).startswith("8 settings are wrong: brokerName: has no default")


@pytest.mark.parametrize("text", ["9223372036854775808", "-9223372036854775809", "1.0", "0x10", ""])
def test_integers_are_java_longs(text: str) -> None:
    with pytest.raises(InvalidConfigError, match=r"brokerId: .* is not an integer"):
        load(BrokerConfig, {"brokerName": "a", "brokerId": text})


def test_contradictions_are_found() -> None:
    with pytest.raises(InvalidConfigError, match="1 setting is wrong: haListenPort: equal"):
        load(BrokerConfig, {"brokerName": "a", "haListenPort": "10911"})


def test_direct_construction_is_checked_too() -> None:
    with pytest.raises(InvalidConfigError, match="listenPort: 70000 is above 65535"):
        ServerConfig(listen_port=70000)
    with pytest.raises(InvalidConfigError, match="listenPort: True is not an integer"):
        ServerConfig(listen_port=True)
    with pytest.raises(InvalidConfigError, match="bindAddress: None is not text"):
        ServerConfig(bind_address=None)  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError, match="ratio: inf is not a finite number"):
        BrokerConfig(broker_name="a", ratio=float("inf"))
    assert BrokerConfig(broker_name="a", ratio=1).ratio == 1


def test_objects_are_frozen() -> None:
    with pytest.raises(AttributeError):
        ServerConfig().listen_port = 1  # type: ignore[misc]


def test_unknown_keys_are_logged_with_the_closest_name(caplog: pytest.LogCaptureFixture) -> None:
    load(BrokerConfig, {"brokerName": "a", "listenport": "1", "somethingElse": "2"})
    assert [record.getMessage() for record in caplog.records] == [
        "unknown setting listenport is ignored; did you mean listenPort?",
        "unknown setting somethingElse is ignored",
    ]
    assert unknown_keys(BrokerConfig, ["brokerid", "brokerId", "q"]) == {
        "brokerid": "brokerId",
        "q": None,
    }


def test_properties_of_a_config_are_sorted_and_plain() -> None:
    config = BrokerConfig(broker_name="a\\b=c", store=StoreConfig(root=Path("/s")))
    assert to_properties(config) == (
        "bindAddress=127.0.0.1\nbrokerId=0\nbrokerName=a\\b=c\nflushDiskType=ASYNC_FLUSH\n"
        "listenPort=10911\nmappedFileSizeCommitLog=1073741824\nratio=0.8\n"
        "slaveReadEnable=false\nstorePathRootDir=/s\n"
    )
    assert load(BrokerConfig, format_properties(to_mapping(config))) == config


class RecordedNamesrvConfig(Config, frozen=True, kw_only=True):
    """Some keys of the answer to request 319 recorded from Apache RocketMQ 5.5.0."""

    rocketmq_home: Annotated[str, Setting("Home.")] = "home"
    config_black_list: Annotated[str, Setting("Fixed.")] = (
        "configBlackList;configStorePath;kvConfigPath"
    )
    un_register_broker_queue_capacity: Annotated[int, Setting("Queue.")] = 3000
    listen_port: Annotated[int, Setting("Port.")] = 29876
    use_epoll: Annotated[bool, Setting("Epoll.", java="useEpollNativeSelector")] = False


def test_properties_equal_the_recorded_ones() -> None:
    assert to_properties(RecordedNamesrvConfig()) == (
        "configBlackList=configBlackList;configStorePath;kvConfigPath\n"
        "listenPort=29876\n"
        "rocketmqHome=home\n"
        "unRegisterBrokerQueueCapacity=3000\n"
        "useEpollNativeSelector=false\n"
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (8000.0, "8000.0"),
        (200000.0, "200000.0"),
        (0.8, "0.8"),
        (0.0, "0.0"),
        (-2.5, "-2.5"),
        (0.001, "0.001"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (-1.25e10, "-1.25E10"),
        (0.0001, "1.0E-4"),
        (5e-324, "5.0E-324"),
        (True, "true"),
        (7, "7"),
        (None, None),
    ],
)
def test_values_print_as_in_java(value: float | None, text: str | None) -> None:
    assert format_value(value) == text


def test_changes_at_run_time(caplog: pytest.LogCaptureFixture) -> None:
    config = BrokerConfig(broker_name="a", zone="z", ha_listen_port=5)
    changed = with_changes(config, "flushDiskType=SYNC_FLUSH\nhaListenPort=\nnope=1\n")
    assert changed == BrokerConfig(
        broker_name="a", zone="z", store=StoreConfig(flush_disk_type=FlushDiskType.SYNC_FLUSH)
    )
    assert config.store.flush_disk_type is FlushDiskType.ASYNC_FLUSH
    assert [record.getMessage() for record in caplog.records] == ["unknown setting nope is ignored"]
    assert with_changes(config, {}) == config


def test_black_listed_key_refuses_the_whole_change() -> None:
    config = BrokerConfig(broker_name="a")
    with pytest.raises(ReadOnlySettingError) as raised:
        with_changes(
            config,
            "brokerId=1\nbrokerConfigPath=x",
            black_list={"brokerConfigPath", "rocketmqHome"},
        )
    assert raised.value.key == "brokerConfigPath"
    assert raised.value.message == "Can not update config in black list."


def test_bad_change_is_refused_whole() -> None:
    config = BrokerConfig(broker_name="a")
    with pytest.raises(InvalidConfigError, match=r"2 settings .* brokerId: .* listenPort: "):
        with_changes(config, {"brokerId": "x", "listenPort": "-1", "zone": "z"})
    with pytest.raises(InvalidConfigError, match="equal to listenPort"):
        with_changes(config, {"haListenPort": "10911"})


def test_reference_rows() -> None:
    rows = {info.java: info for info in settings(BrokerConfig)}
    assert list(rows)[:2] == ["brokerName", "brokerId"]
    size = rows["mappedFileSizeCommitLog"]
    assert (size.section, size.name, size.type_text) == (("store",), "mapped_file_size", "integer")
    assert (size.declared.doc, size.declared.unit) == ("Size of a log file.", "bytes")
    assert size.default_text == "1073741824"
    assert rows["listenPort"].default_text == "10911"
    assert rows["storePathRootDir"].default_text == "${user.home}/store"
    assert rows["brokerName"].default_text is None
    assert rows["flushDiskType"].type_text == "one of SYNC_FLUSH, ASYNC_FLUSH"
    assert [info.java for info in own_settings(StoreConfig)] == [
        "flushDiskType",
        "mappedFileSizeCommitLog",
        "storePathRootDir",
    ]


def test_declaration_mistakes_are_found_at_first_use() -> None:
    class Undocumented(Config, frozen=True, kw_only=True):
        port: int = 1

    class Unsupported(Config, frozen=True, kw_only=True):
        ports: Annotated[list[int], Setting("Ports.")] = msgspec.field(default_factory=list)

    class Twice(Config, frozen=True, kw_only=True):
        listen_port: Annotated[int, Setting("Port.")] = 1
        server: ServerConfig = ServerConfig()

    with pytest.raises(TypeError, match=r"Undocumented\.port: not declared"):
        Undocumented()
    with pytest.raises(TypeError, match=r"Unsupported\.ports: .* is not a type of setting"):
        settings(Unsupported)
    with pytest.raises(TypeError, match="Twice: declared twice: listenPort"):
        settings(Twice)


# --- edited text ---

CONF = """# our broker
brokerName = a

! retention, agreed with the team
fileReservedTime=48
storePathRootDir=/data/\\
    store
fileReservedTime: 72"""


TEXTS = st.text(alphabet="ab=:# !\\\n\r\t1", max_size=60)
WORDS = st.text(alphabet="ab1 =", min_size=1, max_size=2)


def test_an_edit_keeps_everything_else_as_it_is() -> None:
    edited = edit_properties(CONF, {"fileReservedTime": "96", "regionId": "r 2", "brokerName": "a"})
    assert (
        edited == CONF.replace("fileReservedTime: 72", "fileReservedTime=96") + "\nregionId=r 2\n"
    )
    assert parse_properties(edited) == {
        **parse_properties(CONF), "fileReservedTime": "96", "regionId": "r 2",
    }  # fmt: skip
    assert edit_properties(CONF, {"storePathRootDir": "/x"}).splitlines()[5:] == [
        "storePathRootDir=/x",
        "fileReservedTime: 72",
    ]
    assert edit_properties("", {"b": "2", "a": "1"}) == "a=1\nb=2\n"
    assert edit_properties("a=1", {"b": "2"}) == "a=1\nb=2\n"
    assert edit_properties("a=1\\", {"b": "2"}) == "a=1\\\n\nb=2\n"
    assert edit_properties("a=1\\\r", {"b": "2"}) == "a=1\\\r\n\nb=2\n"  # \r\n is one line end
    assert edit_properties("a=1\r\nb=2\r\n", {"a": "3"}) == "a=3\nb=2\r\n"


@given(TEXTS, st.dictionaries(WORDS, WORDS, max_size=3))
def test_an_edit_changes_only_what_it_should(text: str, changes: dict[str, str]) -> None:
    before = parse_properties(text)
    edited = edit_properties(text, changes)
    after = parse_properties(edited)
    for each in (before, after):
        each.pop("", None)  # of a line that has only a backslash, at the end
    assert after == before | changes
    assert edit_properties(text, {key: before[key] for key in before}) == text
