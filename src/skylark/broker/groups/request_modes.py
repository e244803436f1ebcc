"""Request modes: whether a group gets the messages of a topic by pull or by pop (401, 402).

A pair of topic and group without a mode of its own has that of ``defaultMessageRequestMode``. Retry
topics are always pulled. Slaves copy the table.

The table is written to ``messageRequestMode.json`` at each change. It is bounded by
:data:`MODE_COUNT_MAX`; Java's is not. Counterpart of Java's ``MessageRequestModeManager``.
"""

from __future__ import annotations

from typing import Final

from skylark.core.errors import BrokerError
from skylark.store import config_tables
from skylark.wire.bodies.pop_body import SetMessageRequestModeRequestBody
from skylark.wire.bodies.slave_sync_body import MessageRequestModeSerializeWrapper

#: Most pairs of topic and group that have a mode.
MODE_COUNT_MAX: Final = 100_000


class RequestModes:
    """The modes of one broker."""

    def __init__(self) -> None:
        self._modes: dict[str, dict[str, SetMessageRequestModeRequestBody]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._modes.values()))

    def set(self, mode: SetMessageRequestModeRequestBody) -> None:
        """SET_MESSAGE_REQUEST_MODE (401); topic and group exist."""
        if mode.mode is None:
            raise BrokerError("the mode is missing, or unknown", hint="it is PULL or POP")
        groups = self._modes.get(mode.topic, {})
        if mode.consumer_group not in groups and len(self) >= MODE_COUNT_MAX:
            raise BrokerError(f"{MODE_COUNT_MAX} groups have a request mode already")
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode

    def get(self, topic: str, group: str) -> SetMessageRequestModeRequestBody | None:
        """The mode that was set; None if there is none."""
        modes = self._modes.get(topic)
        return None if modes is None else modes.get(group)

    def dump(self) -> MessageRequestModeSerializeWrapper:
        """GET_ALL_MESSAGE_REQUEST_MODE (402); shares the map: encode it before it changes."""
        return MessageRequestModeSerializeWrapper(message_request_mode_map=self._modes)

    def snapshot(self) -> config_tables.MessageRequestModeTable:
        """The content of ``messageRequestMode.json``, independent of later changes."""
        return config_tables.MessageRequestModeTable(
            message_request_mode_map={topic: dict(modes) for topic, modes in self._modes.items()}
        )

    def load(self, table: config_tables.MessageRequestModeTable) -> None:
        """Load ``messageRequestMode.json``."""
        self._modes = {
            topic: dict(modes) for topic, modes in table.message_request_mode_map.items()
        }
