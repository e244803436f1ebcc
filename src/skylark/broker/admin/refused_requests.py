"""Requests that this broker does not support, each with the reason for the answer (mostly 3).

The dispatcher refuses unknown codes; these codes are known. Together with the handlers this table
covers every request of the catalogue that is meant for a broker: a test compares them. A request
that gets a handler leaves the table. A reason with the word "yet" is temporary: the compatibility
page calls such requests "later", and the others "refused".
"""

from __future__ import annotations

from typing import Final

from skylark.core.errors import BrokerError, RequestNotSupportedError
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.wire.catalogue import name_of
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command

_POP_ROLLBACK: Final = "the state of POP is kept in the revive topics, not in RocksDB"
_LITE: Final = "this broker has no lite topics"
_REPLICA: Final = "slaves do not act as masters yet: nothing has to be agreed upon"
_CONTROLLER: Final = "there is no controller yet that could run this broker"
_CONTAINER: Final = "this broker is not in a container: start another process"
_TIMER: Final = "there is one timer here, that of the files"

#: Refused with code 1, as by a Java broker whose access control is not configured.
ACCESS_CONTROL: Final = dict.fromkeys(
    (
        RequestCode.AUTH_CREATE_USER,
        RequestCode.AUTH_UPDATE_USER,
        RequestCode.AUTH_DELETE_USER,
        RequestCode.AUTH_GET_USER,
        RequestCode.AUTH_LIST_USER,
        RequestCode.AUTH_CREATE_ACL,
        RequestCode.AUTH_UPDATE_ACL,
        RequestCode.AUTH_DELETE_ACL,
        RequestCode.AUTH_GET_ACL,
        RequestCode.AUTH_LIST_ACL,
    ),
    "this broker has no access control yet",
)

#: Code -> why it is refused.
REFUSED: Final[dict[RequestCode, str]] = {
    RequestCode.POP_ROLLBACK: _POP_ROLLBACK,
    RequestCode.POP_LITE_MESSAGE: _LITE,
    RequestCode.LITE_SUBSCRIPTION_CTL: _LITE,
    RequestCode.ACK_LITE_MESSAGE: _LITE,
    RequestCode.GET_BROKER_LITE_INFO: _LITE,
    RequestCode.GET_PARENT_TOPIC_INFO: _LITE,
    RequestCode.GET_LITE_TOPIC_INFO: _LITE,
    RequestCode.GET_LITE_CLIENT_INFO: _LITE,
    RequestCode.GET_LITE_GROUP_INFO: _LITE,
    RequestCode.TRIGGER_LITE_DISPATCH: _LITE,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: _REPLICA,
    RequestCode.EXCHANGE_BROKER_HA_INFO: _REPLICA,
    RequestCode.GET_BROKER_EPOCH_CACHE: _CONTROLLER,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: _CONTROLLER,
    RequestCode.ADD_BROKER: _CONTAINER,
    RequestCode.REMOVE_BROKER: _CONTAINER,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "this broker has no static topics",
    RequestCode.SWITCH_TIMER_ENGINE: _TIMER,
    **ACCESS_CONTROL,
}


class Refusals:
    """Refuses every request of the table."""

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handler of each code."""
        for code in REFUSED:
            dispatcher.add_hot(code, self.refuse)

    def refuse(self, _connection: Connection, request: Command) -> Command:
        """Any request of the table."""
        code = RequestCode(request.code)
        reason = f"{name_of(code)}: {REFUSED[code]}"
        if code in ACCESS_CONTROL:
            raise BrokerError(reason)
        raise RequestNotSupportedError(f" request type {request.code} not supported", hint=reason)
