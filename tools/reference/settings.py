"""``docs/reference/broker-config.md`` and ``namesrv-config.md``, from the config objects.

A table for each group of settings, in the order of the source. The last column says what
request 25 (brokers) or 318 (name servers) does with a key while the server runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Final

from skylark.broker.config import ALWAYS_BLACK_LISTED, BrokerConfig
from skylark.broker.ignored_settings import IGNORED
from skylark.broker.ignored_settings import REFUSED as REFUSED_BROKER
from skylark.broker.live_settings import READ_AT_START, START_REASONS
from skylark.broker.pop_settings import PopConfig
from skylark.core.config import Config, SettingInfo, format_value, own_settings, settings
from skylark.core.ignored_keys import ignored_keys
from skylark.namesrv.config import ALWAYS_BLACK_LISTED as NAMESRV_BLACK_LISTED
from skylark.namesrv.config import READ_AT_START as NAMESRV_READ_AT_START
from skylark.namesrv.config import IgnoredSettings, NamesrvConfig
from skylark.replication.config import ReplicationConfig
from skylark.store.config import REFUSED as REFUSED_STORE
from skylark.store.config import StoreConfig
from tools.reference.comments import remarks
from tools.reference.markdown import code, head, table

AT_ONCE: Final = "at once"
RESTART: Final = "restart"
INT_MAX: Final = (1 << 31) - 1  # of Java: no limit that anybody would meet
FILE_ONLY: Final = "file only"
COLUMNS: Final = ("Key", "Type", "Default", "Meaning", "Changes hold")

_CHANGES: Final = """
*Changes hold* says what happens when a key is changed while the server runs: *at once*; at the
next *restart* (the change is taken and saved); or, *file only*, it is refused, because it names a
path or decides what may be changed.
"""
_BROKER: Final = f"""
Keys and defaults are those of Apache's `broker.conf`, and a file written for it loads unchanged.
Give keys in a properties file to `skylark broker -c FILE`, by `skylark up --set KEY=VALUE`, or to
a running broker by `skylark cluster config set KEY=VALUE`. Unknown keys are logged, with the
closest name that is known, and ignored; a wrong value stops the start, and all wrong ones are told
together.
{_CHANGES}
`${{...}}` in a default is filled in at the start: `user.home`, `host.name`, or a variable of the
environment. To see what a broker would run with:

```console
$ skylark broker -p
...
brokerName=...
...
```

`skylark up` sets `enablePopBufferMerge`, `enablePropertyFilter`, `recallMessageEnable` and
`traceTopicEnable` to `true`; `skylark broker` keeps Java's defaults, but for `bindAddress`.
"""
_NAMESRV: Final = f"""
Keys and defaults are those of Apache's `namesrv.conf`, and a file written for it loads unchanged.
Give keys in a properties file to `skylark namesrv -c FILE`, or to running name servers by
`skylark cluster config set --name-servers KEY=VALUE`.
{_CHANGES}
```console
$ skylark namesrv -p
...
listenPort=9876
...
```
"""


def broker_page() -> str:
    """All settings of a broker."""
    reasons = (
        [reason, ", ".join(map(code, keys.split()))] for reason, keys in START_REASONS.items()
    )
    parts = [
        head("Settings of a broker", _BROKER, written_from="the config objects"),
        *_groups(BrokerConfig, "", broker_change),
        *_groups(PopConfig, "POP: ", broker_change),
        *_groups(StoreConfig, "Store: ", broker_change),
        "## Replication\n",
        table(COLUMNS, (_row(info, broker_change) for info in own_settings(ReplicationConfig))),
        "## What waits for a restart\n",
        table(["Why", "Keys"], reasons),
        "## Values that are refused\n\nOther values than these stop the start.\n",
        table(["Key", "Accepted", "Why no other"], _refused_rows()),
        "## Keys without effect\n\nThey belong to what the Java process has and this one has not."
        " They are accepted and shown.\n",
        table(["Why", "Keys"], _ignored_rows()),
    ]
    return "\n".join(parts)


def namesrv_page() -> str:
    """All settings of a name server."""
    ignored = (
        [code(info.java), _default(info), info.declared.doc.removeprefix("Ignored: ")]
        for info in own_settings(IgnoredSettings)
    )
    parts = [
        head("Settings of a name server", _NAMESRV, written_from="the config object"),
        *_groups(NamesrvConfig, "", namesrv_change),
        "## Keys without effect\n\nThey are accepted and shown.\n",
        table(["Key", "Default", "Why"], ignored),
    ]
    return "\n".join(parts)


def broker_change(key: str) -> str:
    """What request 25 does with a key."""
    if key in ALWAYS_BLACK_LISTED:
        return FILE_ONLY
    return RESTART if key in READ_AT_START else AT_ONCE


def namesrv_change(key: str) -> str:
    """What request 318 does with a key."""
    if key in NAMESRV_BLACK_LISTED:
        return FILE_ONLY
    return RESTART if key in NAMESRV_READ_AT_START else AT_ONCE


def _groups(owner: type[Config], prefix: str, change: Callable[[str], str]) -> Iterable[str]:
    """A section for each group of the source."""
    group_of = {name: remark.group for name, remark in remarks(owner).items()}
    refused = {
        info.java for info in settings(StoreConfig) if info.name in REFUSED_STORE
    } | REFUSED_BROKER.keys()
    shown = [info for info in own_settings(owner) if info.java not in refused]
    for group, infos in groupby(shown, key=lambda info: group_of[info.name]):
        title = prefix + group
        yield f"## {title[:1].upper()}{title[1:]}\n"
        yield table(COLUMNS, (_row(info, change) for info in infos))


def _row(info: SettingInfo, change: Callable[[str], str]) -> list[str]:
    kind = info.type_text.removeprefix("one of ")
    return [code(info.java), kind, _default(info), _meaning(info), change(info.java)]


def _default(info: SettingInfo) -> str:
    text = info.default_text
    if not text:
        return "none"
    unit = info.declared.unit
    return f"{code(text)} {unit}" if unit else code(text)


def _meaning(info: SettingInfo) -> str:
    """The sentence of the source, and the limits."""
    low, high = info.declared.minimum, info.declared.maximum
    limits = ""
    if high is not None and high < INT_MAX:
        limits = f"{low or 0:.0f} to {high:.0f}."
    elif low:
        limits = f"At least {low:.0f}."
    return f"{info.declared.doc} {limits}".strip()


def _refused_rows() -> Iterable[list[str]]:
    for info in settings(StoreConfig):
        if info.name in REFUSED_STORE:
            accepted = code(format_value(info.default) or "") or "none"
            yield [code(info.java), accepted, REFUSED_STORE[info.name]]
    for key, (value, reason) in sorted(REFUSED_BROKER.items()):
        yield [code(key), code(format_value(value) or "") or "none", reason]


def _ignored_rows() -> Iterable[list[str]]:
    taken = {info.java for info in settings(StoreConfig)} | REFUSED_BROKER.keys()
    rows = ((reason, key) for key, _, reason in ignored_keys(IGNORED) if key not in taken)
    for reason, pairs in groupby(rows, key=lambda row: row[0]):
        yield [reason, ", ".join(code(key) for _, key in pairs)]
