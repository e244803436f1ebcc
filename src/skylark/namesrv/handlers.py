"""The request handlers of the name server, one function per request code.

Requests that only touch memory have hot handlers, which run while the bytes are being read, so the
registrations of one connection are handled in order. Requests that write a file (KV changes and new
settings) have cold handlers.

Responses have Java's codes, remarks and ext fields. If Java has a typed response header, the ext
map is present even if it is empty, also in a refusal. Counterpart of Java's
``ClientRequestProcessor`` and ``DefaultRequestProcessor``.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Final

from skylark.core import config as settings
from skylark.core.clock import Clock
from skylark.core.errors import BrokerError, ConfigError, HeaderFieldError, NoPermissionError
from skylark.namesrv.atomic_file import SavedFile
from skylark.namesrv.broker_registration import HEARTBEAT_TIMEOUT_MS, Registration
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.kv import ORDER_TOPIC_CONFIG, KvTable
from skylark.namesrv.liveness import Liveness
from skylark.namesrv.route_responses import RouteAnswers
from skylark.namesrv.routes import RouteTables
from skylark.net.connection import Connection
from skylark.net.dispatch import Dispatcher
from skylark.net.success_response import FAQ_HINT, UNSET_REMARK, success
from skylark.wire.bodies.common_body import DataVersion, KVTable
from skylark.wire.bodies.register import decode_register_body, register_body_crc
from skylark.wire.bodies.route_body import GetBrokerMemberGroupResponseBody, TopicRouteData
from skylark.wire.codes import V4_9_4, RequestCode, ResponseCode, TopicSysFlag
from skylark.wire.command import Command, response_to
from skylark.wire.fastjson import decode_body, encode_body
from skylark.wire.fields import decode_ext
from skylark.wire.headers import route as headers
from skylark.wire.headers.admin import TopicRequestHeader

logger = logging.getLogger(__name__)

#: Lists of topics by the bits of their system flag: those that are set and those that are not.
UNIT_LISTS: Final[dict[int, tuple[int, int]]] = {
    RequestCode.GET_UNIT_TOPIC_LIST: (TopicSysFlag.UNIT, 0),
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: (TopicSysFlag.UNIT_SUB, 0),
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (TopicSysFlag.UNIT_SUB, TopicSysFlag.UNIT),
}


class NamesrvHandlers:
    """The handlers of all requests that a name server supports."""

    def __init__(
        self,
        config: NamesrvConfig,
        tables: RouteTables,
        kv: KvTable,
        answers: RouteAnswers,
        liveness: Liveness,
        clock: Clock,
        *,
        kv_file: SavedFile,
        config_file: SavedFile,
    ) -> None:
        self.config = config
        self._tables = tables
        self._kv = kv
        self._answers = answers
        self._liveness = liveness
        self._clock = clock
        self._kv_file = kv_file
        self._config_file = config_file
        self._changed: set[str] = set()  # settings that requests have changed
        self._started_at = clock.monotonic()

    def start_waiting(self) -> None:
        """Start the waiting time of ``needWaitForService``."""
        self._started_at = self._clock.monotonic()

    def add_to(self, dispatcher: Dispatcher) -> None:
        """Register the handlers with the dispatcher."""
        hot = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.get_member_group,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.set_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.set_write_perm,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.get_all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.get_topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.get_system_topics,
            **dict.fromkeys(UNIT_LISTS, self.get_unit_topics),
            RequestCode.GET_KV_CONFIG: self.get_kv,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_kv_namespace,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }
        for code, handler in hot.items():
            dispatcher.add_hot(code, handler)
        dispatcher.add_cold(RequestCode.PUT_KV_CONFIG, self.put_kv)
        dispatcher.add_cold(RequestCode.DELETE_KV_CONFIG, self.delete_kv)
        dispatcher.add_cold(RequestCode.UPDATE_NAMESRV_CONFIG, self.update_config)

    # --- routes ---------------------------------------------------------------------------------

    def get_route(self, connection: Connection, request: Command) -> Command:
        """GET_ROUTEINFO_BY_TOPIC (105)."""
        try:
            header = decode_ext(headers.GetRouteInfoRequestHeader, request.ext)
        except HeaderFieldError:
            return _no_route(request, "null")  # as Java, which searches for null
        config = self.config
        if config.need_wait_for_service:
            waited_s = self._clock.monotonic() - self._started_at
            if waited_s < config.wait_seconds_for_service:
                return response_to(request, ResponseCode.SYSTEM_ERROR, "name server not ready")
        zone = header.zone_name if header.zone_mode and (header.zone_name or "").strip() else None
        body = self._answers.route(
            header.topic,
            standard=request.version >= V4_9_4 or header.accept_standard_json_only is True,
            with_order=config.order_message_enable,
            local_host=connection.local_address[0],
            zone=zone,
        )
        if body is None:
            return _no_route(request, header.topic)
        return response_to(request, ResponseCode.SUCCESS, body=body)

    def get_cluster_info(self, connection: Connection, request: Command) -> Command:
        """GET_BROKER_CLUSTER_INFO (106)."""
        body = self._answers.cluster_info(connection.local_address[0])
        return response_to(request, ResponseCode.SUCCESS, body=body)

    def get_member_group(self, _connection: Connection, request: Command) -> Command:
        """GET_BROKER_MEMBER_GROUP (901)."""
        header = decode_ext(headers.GetBrokerMemberGroupRequestHeader, request.ext)
        group = self._tables.member_group(header.cluster_name, header.broker_name)
        body = GetBrokerMemberGroupResponseBody(broker_member_group=group)
        return success(request, body=body, remark=UNSET_REMARK)

    # --- brokers --------------------------------------------------------------------------------

    def register_broker(self, connection: Connection, request: Command) -> Command:
        """REGISTER_BROKER (103)."""
        header = decode_ext(headers.RegisterBrokerRequestHeader, request.ext)
        body = request.body or b""
        if header.body_crc32 != 0 and header.body_crc32 != register_body_crc(body):
            logger.warning("%r sent a damaged registration of %s", connection, header.broker_name)
            return response_to(request, ResponseCode.SYSTEM_ERROR, "crc32 not match", ext={})
        content = decode_register_body(body, version=request.version, compressed=header.compressed)
        table = content.topic_config_serialize_wrapper
        timeout_ms = header.heartbeat_timeout_millis
        registration = Registration(
            cluster=header.cluster_name,
            broker_name=header.broker_name,
            broker_addr=header.broker_addr,
            broker_id=header.broker_id,
            ha_server_addr=header.ha_server_addr,
            connection=connection,
            version=table.data_version,
            topics=table.topic_config_table,
            mappings=table.topic_queue_mapping_info_map,
            filter_servers=content.filter_server_list,
            zone_name=header.zone_name,
            heartbeat_timeout_ms=HEARTBEAT_TIMEOUT_MS if timeout_ms is None else timeout_ms,
            enable_acting_master=header.enable_acting_master,
        )
        try:
            registered = self._tables.register(registration, self._clock.steady_ms())
        except BrokerError as error:
            return response_to(request, error.code, str(error), ext={})
        self._liveness.notify(registered.notices)
        answer = success(
            request,
            header=headers.RegisterBrokerResponseHeader(
                ha_server_addr=registered.ha_server_addr, master_addr=registered.master_addr
            ),
        )
        order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        if order is not None and self.config.return_order_topic_config_to_broker:
            answer.body = encode_body(KVTable(table=order))
        if registered.topics_left_out:
            answer.code = ResponseCode.SYSTEM_ERROR
            answer.remark = (
                f"{registered.topics_left_out} topics left out: the name server knows"
                f" {self._tables.topic_count}, the limit: raise topicCountMax"
            )
        return answer

    def unregister_broker(self, _connection: Connection, request: Command) -> Command:
        """UNREGISTER_BROKER (104)."""
        header = decode_ext(headers.BrokerRequestHeader, request.ext)
        queued = self._tables.remove(
            header.cluster_name, header.broker_name, header.broker_addr, header.broker_id
        )
        self._liveness.drain_soon()
        return response_to(request, ResponseCode.SUCCESS if queued else ResponseCode.SYSTEM_ERROR)

    def query_data_version(self, _connection: Connection, request: Command) -> Command:
        """QUERY_DATA_VERSION (322)."""
        header = decode_ext(headers.BrokerRequestHeader, request.ext)
        theirs = decode_body(DataVersion, request.body) if request.body else None
        changed, known = self._tables.query_version(
            header.cluster_name, header.broker_addr, theirs, self._clock.steady_ms()
        )
        answer = success(request, header=headers.QueryDataVersionResponseHeader(changed=changed))
        if known is not None:
            answer.body = encode_body(known)
        return answer

    def broker_heartbeat(self, _connection: Connection, request: Command) -> Command:
        """BROKER_HEARTBEAT (904)."""
        header = decode_ext(headers.BrokerHeartbeatRequestHeader, request.ext)
        self._tables.heartbeat(header.cluster_name, header.broker_addr, self._clock.steady_ms())
        return response_to(request, ResponseCode.SUCCESS)

    # --- topics ---------------------------------------------------------------------------------

    def register_topic(self, connection: Connection, request: Command) -> Command:
        """REGISTER_TOPIC_IN_NAMESRV (217)."""
        header = decode_ext(TopicRequestHeader, request.ext)
        if request.body:
            route = decode_body(TopicRouteData, request.body)
            if route.queue_datas:
                self._tables.register_topic(
                    header.topic, route.queue_datas, connection, self._clock.steady_ms()
                )
        return response_to(request, ResponseCode.SUCCESS)

    def delete_topic(self, connection: Connection, request: Command) -> Command:
        """DELETE_TOPIC_IN_NAMESRV (216)."""
        header = decode_ext(headers.DeleteTopicFromNamesrvRequestHeader, request.ext)
        logger.info("%r deletes topic %s", connection, header.topic)
        self._tables.delete_topic(header.topic, header.cluster_name)
        return response_to(request, ResponseCode.SUCCESS)

    def set_write_perm(self, connection: Connection, request: Command) -> Command:
        """WIPE_WRITE_PERM_OF_BROKER (205) and ADD_WRITE_PERM_OF_BROKER (327)."""
        name = decode_ext(headers.WritePermOfBrokerRequestHeader, request.ext).broker_name
        writable = request.code == RequestCode.ADD_WRITE_PERM_OF_BROKER
        count = self._tables.set_writable(name, writable)
        done = "enabled" if writable else "disabled"
        logger.info("%r %s sends to %s, %d topics", connection, done, name, count)
        if writable:
            added = headers.AddWritePermOfBrokerResponseHeader(add_topic_count=count)
            return success(request, header=added)
        wiped = headers.WipeWritePermOfBrokerResponseHeader(wipe_topic_count=count)
        return success(request, header=wiped)

    def get_all_topics(self, _connection: Connection, request: Command) -> Command:
        """GET_ALL_TOPIC_LIST_FROM_NAMESERVER (206)."""
        if not self.config.enable_all_topic_list:
            return response_to(request, ResponseCode.SYSTEM_ERROR, "disable")
        return success(request, body=self._tables.topics())

    def get_topics_of_cluster(self, _connection: Connection, request: Command) -> Command:
        """GET_TOPICS_BY_CLUSTER (224)."""
        if not self.config.enable_topic_list:
            return response_to(request, ResponseCode.SYSTEM_ERROR, "disable")
        header = decode_ext(headers.GetTopicsByClusterRequestHeader, request.ext)
        return success(request, body=self._tables.topics_of_cluster(header.cluster))

    def get_system_topics(self, connection: Connection, request: Command) -> Command:
        """GET_SYSTEM_TOPIC_LIST_FROM_NS (304)."""
        found = self._answers.system_topics(connection.local_address[0])
        return success(request, body=found)

    def get_unit_topics(self, _connection: Connection, request: Command) -> Command:
        """The requests of :data:`UNIT_LISTS` (311 to 313)."""
        if not self.config.enable_topic_list:
            return response_to(request, ResponseCode.SYSTEM_ERROR, "disable")
        with_bits, without_bits = UNIT_LISTS[request.code]
        topics = self._tables.topics_by_flag(
            lambda flag: bool(flag & with_bits) and not flag & without_bits
        )
        return success(request, body=topics)

    # --- KV table -------------------------------------------------------------------------------

    async def put_kv(self, connection: Connection, request: Command) -> Command:
        """PUT_KV_CONFIG (100)."""
        header = decode_ext(headers.PutKVConfigRequestHeader, request.ext)
        self._kv.put(header.namespace, header.key, header.value)
        logger.info("%r puts %s in KV namespace %s", connection, header.key, header.namespace)
        return await _saved(request, self._kv_file.save(self._kv.encode))

    async def delete_kv(self, connection: Connection, request: Command) -> Command:
        """DELETE_KV_CONFIG (102)."""
        header = decode_ext(headers.KVKeyRequestHeader, request.ext)
        self._kv.delete(header.namespace, header.key)
        logger.info("%r deletes %s of KV namespace %s", connection, header.key, header.namespace)
        return await _saved(request, self._kv_file.save(self._kv.encode))

    def get_kv(self, _connection: Connection, request: Command) -> Command:
        """GET_KV_CONFIG (101)."""
        header = decode_ext(headers.KVKeyRequestHeader, request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            remark = f"No config item, Namespace: {header.namespace} Key: {header.key}"
            return response_to(request, ResponseCode.QUERY_NOT_FOUND, remark, ext={})
        return success(request, header=headers.GetKVConfigResponseHeader(value=value))

    def get_kv_namespace(self, _connection: Connection, request: Command) -> Command:
        """GET_KVLIST_BY_NAMESPACE (219)."""
        header = decode_ext(headers.GetKVListByNamespaceRequestHeader, request.ext)
        table = self._kv.namespace(header.namespace)
        if table is None:
            remark = f"No config item, Namespace: {header.namespace}"
            return response_to(request, ResponseCode.QUERY_NOT_FOUND, remark)
        return success(request, body=KVTable(table=table))

    # --- settings -------------------------------------------------------------------------------

    def get_config(self, _connection: Connection, request: Command) -> Command:
        """GET_NAMESRV_CONFIG (319)."""
        text = settings.to_properties(self.config)
        return response_to(request, ResponseCode.SUCCESS, body=text.encode())

    async def update_config(self, connection: Connection, request: Command) -> Command:
        """UPDATE_NAMESRV_CONFIG (318): all of it or nothing."""
        if not request.body:
            return response_to(request, ResponseCode.SUCCESS)
        try:
            config = settings.with_changes(
                self.config, request.body, black_list=self.config.black_list
            )
        except settings.ReadOnlySettingError as error:
            raise NoPermissionError(error.message) from error
        except ConfigError as error:
            raise BrokerError(str(error)) from error
        logger.info("%r changes settings: %s", connection, request.body)
        self.config = config
        self._tables.reconfigure(config)
        texts = settings.to_mapping(config)
        self._changed |= settings.parse_properties(request.body).keys() & texts.keys()
        changes = {key: texts[key] for key in self._changed}
        return await _saved(request, self._config_file.edit(changes))


async def _saved(request: Command, saving: Awaitable[None]) -> Command:
    try:
        await saving
    except (OSError, ConfigError) as error:
        logger.exception("a change of request %s holds, but only until restart", request.code)
        return response_to(
            request,
            ResponseCode.SYSTEM_ERROR,
            f"the change holds until restart, it could not be saved: {error}",
        )
    return response_to(request, ResponseCode.SUCCESS)


def _no_route(request: Command, topic: str) -> Command:
    remark = f"No topic route info in name server for the topic: {topic}{FAQ_HINT}"
    return response_to(request, ResponseCode.TOPIC_NOT_EXIST, remark)
