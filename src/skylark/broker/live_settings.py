"""The settings in force, as requests 25 and 26 change and show them.

A :class:`BrokerConfig` never changes; a change is another one. Whoever must follow changes keeps
the :class:`LiveSettings` and reads ``live.current.some_setting`` when it needs it; whoever reads a
setting once keeps what it read, and the change waits for the next start.

The version goes up by one with every change that was accepted, also if it named only keys that
nobody knows, as in Java. Keys of the settings file that are not known here are never shown, since
they may be secrets of something else, but they are written back when the file is.

Answers to Java's ``Configuration``.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from skylark.broker.config import BrokerConfig
from skylark.core.config import (
    format_properties,
    parse_properties,
    to_mapping,
    unknown_keys,
    with_changes,
)
from skylark.wire.bodies.common import DataVersion

log = logging.getLogger(__name__)

#: What request 26 says besides the settings: abilities of a broker of ours that clients look for.
FACTS: Final = {"transactionEndIdempotent": "true"}


class SettingsChange(msgspec.Struct, frozen=True, kw_only=True):
    """What request 25 did."""

    named: frozenset[str]  # keys in the request; a named key counts even if its value is the same
    old: BrokerConfig
    new: BrokerConfig


class LiveSettings:
    """Holds the settings of one broker."""

    def __init__(
        self, config: BrokerConfig, *, now_ms: int, given: Mapping[str, str] | None = None
    ) -> None:
        """``given`` are the properties that the broker was started with, known or not."""
        self.current = config
        self.version = DataVersion(timestamp=now_ms)
        self._foreign = {key: (given or {})[key] for key in unknown_keys(BrokerConfig, given or ())}

    def update(self, changes: str | bytes, now_ms: int) -> SettingsChange:
        """Apply the properties text of request 25: all of it or nothing.

        Raises ReadOnlySettingError (answered with 16) for a key on the black list, and another
        ConfigError (answered with 1) for text or values that are wrong. Unknown keys are ignored.
        """
        texts = parse_properties(changes)
        old = self.current
        self.current = with_changes(old, texts, black_list=old.black_list)
        self.version = self.version.next(now_ms)
        log.info("settings changed: %s", ", ".join(sorted(texts)))
        return SettingsChange(named=frozenset(texts), old=old, new=self.current)

    def text(self) -> str:
        """The body of request 26: ``key=value`` lines, sorted and not escaped."""
        lines = sorted((to_mapping(self.current) | FACTS).items())
        return "".join(f"{key}={value}\n" for key, value in lines)

    def encode(self) -> bytes:
        """The content of the settings file after a change."""
        return format_properties(self._foreign | to_mapping(self.current)).encode("ascii")
