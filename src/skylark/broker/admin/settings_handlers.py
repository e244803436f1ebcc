"""Requests about settings: change them (25), read them (26).

A change takes effect at once, or for some settings at the next start
(:mod:`skylark.broker.live_settings`), and is answered when the settings file has it. A changed
``brokerPermission`` changes the permissions of every topic, so all topics are registered again.
"""

from __future__ import annotations

import logging

from skylark.broker.admin.handler_base import AdminHandlers, handles
from skylark.broker.table_saver import not_saved
from skylark.core.config import InvalidConfigError, ReadOnlySettingError
from skylark.core.errors import BrokerError, ConfigError, NoPermissionError, StoreError
from skylark.net.connection import Connection
from skylark.net.success_response import success
from skylark.wire.codes import RequestCode
from skylark.wire.command import Command
from skylark.wire.fastjson import encode_body
from skylark.wire.headers.admin import GetBrokerConfigResponseHeader

logger = logging.getLogger(__name__)


class SettingsHandlers(AdminHandlers):
    """The requests about settings."""

    @handles(RequestCode.UPDATE_BROKER_CONFIG)
    async def update(self, connection: Connection, request: Command) -> Command:
        """UPDATE_BROKER_CONFIG (25): all of it or nothing."""
        if not request.body:
            return success(request)
        logger.info("%r changes settings", connection)
        try:
            changed = self._broker.live.update(request.body, self._broker.clock.now_ms())
        except ReadOnlySettingError as error:
            raise NoPermissionError(error.message) from error
        except InvalidConfigError as error:
            raise BrokerError(str(error)) from error
        except ConfigError as error:
            raise BrokerError("string2Properties error", hint=str(error)) from error
        if "brokerPermission" in changed:
            self._broker.topics.renew_version()
            await self._broker.register_all()
        try:
            await self._broker.settings_file.save()
        except (ConfigError, StoreError) as error:
            logger.warning("cannot save the settings, they hold until restart: %s", error)
            raise not_saved(error) from error
        return success(request)

    @handles(RequestCode.GET_BROKER_CONFIG)
    def get(self, _connection: Connection, request: Command) -> Command:
        """GET_BROKER_CONFIG (26)."""
        version = encode_body(self._broker.live.version).decode()
        answer = success(request, header=GetBrokerConfigResponseHeader(version=version))
        answer.body = self._broker.live.text().encode()
        return answer
