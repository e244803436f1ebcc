"""Settings of the name server: Java's keys and defaults, and some that only Skylark has.

A properties file written for ``mqnamesrv`` loads unchanged. Its keys fall in two groups:

* :class:`NamesrvConfig` has the settings with an effect. Request 318 changes them at run time;
  those that are read once (:data:`READ_AT_START`) take effect at the next start, as in Java.
* :class:`IgnoredSettings` has those for thread pools and Netty options of the Java process, or for
  features that are elsewhere here. They are accepted, and request 319 returns them, so that tools
  find every key they know; they have no effect.

Two differences from Java. ``bindAddress`` is loopback unless set, because a name server has no
access control: any client that reaches it can redirect producers. And the serialize type, a system
property in Java, is a key like any other.

Counterpart of Java's ``NamesrvConfig`` and ``NettyServerConfig``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from skylark.core.config import Config, Setting
from skylark.core.names import is_loopback
from skylark.wire.command import SerializeType

#: Request 318 never changes these, whether ``configBlackList`` has them or not.
ALWAYS_BLACK_LISTED = frozenset(
    {"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"}
)
#: Read once, when a name server is created: a change takes effect at the next start.
READ_AT_START = frozenset(
    {
        "bindAddress",
        "connectionCountMax",
        "kvSizeMax",
        "listenPort",
        "metricsPort",
        "rocketmq.serialize.type",
        "scanNotActiveBrokerInterval",
        "serverChannelMaxIdleTimeSeconds",
    }
)


class IgnoredSettings(Config, frozen=True, kw_only=True):
    """Keys of the Java process, accepted and returned but without effect."""

    product_env_name: Annotated[
        str, Setting("Ignored: name of the environment that clusterTest asks.")
    ] = "center"
    cluster_test: Annotated[
        bool, Setting("Ignored: asking another environment for topics unknown here.")
    ] = False
    enable_controller_in_namesrv: Annotated[
        bool, Setting("Ignored: the controller is a process of its own.")
    ] = False
    client_request_thread_pool_nums: Annotated[
        int, Setting("Ignored: one event loop answers all requests.")
    ] = 8
    client_request_thread_pool_queue_capacity: Annotated[
        int, Setting("Ignored: requests wait in the kernel, see back-pressure.")
    ] = 50_000
    default_thread_pool_nums: Annotated[
        int, Setting("Ignored: one event loop answers all requests.")
    ] = 16
    default_thread_pool_queue_capacity: Annotated[
        int, Setting("Ignored: requests wait in the kernel, see back-pressure.")
    ] = 10_000
    enable_shutdown_gracefully: Annotated[
        bool, Setting("Ignored: every shutdown is orderly, with GO_AWAY.")
    ] = False
    shutdown_wait_time_seconds: Annotated[
        int, Setting("Ignored: shutdown takes as long as requests in hand.", unit="s")
    ] = 30
    server_async_semaphore_value: Annotated[
        int, Setting("Ignored: the name server calls nobody and waits.")
    ] = 64
    server_oneway_semaphore_value: Annotated[int, Setting("Ignored: permits of Netty.")] = 256
    server_callback_executor_threads: Annotated[int, Setting("Ignored: threads of Netty.")] = 0
    server_selector_threads: Annotated[int, Setting("Ignored: threads of Netty.")] = 3
    server_worker_threads: Annotated[int, Setting("Ignored: threads of Netty.")] = 8
    server_netty_worker_group_enable: Annotated[bool, Setting("Ignored: option of Netty.")] = True
    server_pooled_byte_buf_allocator_enable: Annotated[
        bool, Setting("Ignored: option of Netty.")
    ] = True
    server_socket_backlog: Annotated[
        int, Setting("Ignored: the backlog is always 1024, Java's default.")
    ] = 1024
    server_socket_rcv_buf_size: Annotated[
        int, Setting("Ignored: the kernel sizes its buffers.", unit="bytes")
    ] = 0
    server_socket_snd_buf_size: Annotated[
        int, Setting("Ignored: the kernel sizes its buffers.", unit="bytes")
    ] = 0
    use_epoll_native_selector: Annotated[bool, Setting("Ignored: option of Netty.")] = False
    write_buffer_high_water_mark: Annotated[
        int, Setting("Ignored: option of Netty.", unit="bytes")
    ] = 0
    write_buffer_low_water_mark: Annotated[
        int, Setting("Ignored: option of Netty.", unit="bytes")
    ] = 0


class NamesrvConfig(Config, frozen=True, kw_only=True):
    """The settings of a name server."""

    # --- where -----------------------------------------------------------------------------------
    bind_address: Annotated[
        str, Setting("Address to listen on; beyond loopback nothing protects the name server.")
    ] = "127.0.0.1"
    listen_port: Annotated[
        int, Setting("Port to listen on; 0 draws a free one.", minimum=0, maximum=65_535)
    ] = 9876
    rocketmq_home: Annotated[
        str | None, Setting("Shown only; nothing is read from there.", template="${ROCKETMQ_HOME}")
    ] = None
    kv_config_path: Annotated[
        Path | None,
        Setting(
            "File of the KV table; without one it lives in memory only.",
            template="${user.home}/namesrv/kvConfig.json",
        ),
    ] = None
    config_store_path: Annotated[
        Path | None,
        Setting(
            "File that request 318 writes; the command line sets it to the file it was given.",
            template="${user.home}/namesrv/namesrv.properties",
        ),
    ] = None
    config_black_list: Annotated[
        str, Setting("Keys, joined by ';', that request 318 may not change.")
    ] = "configBlackList;configStorePath;kvConfigPath"

    # --- routes ----------------------------------------------------------------------------------
    order_message_enable: Annotated[
        bool, Setting("Put the KV namespace ORDER_TOPIC_CONFIG into route answers.")
    ] = False
    return_order_topic_config_to_broker: Annotated[
        bool, Setting("Give that namespace to brokers when they register.")
    ] = True
    need_wait_for_service: Annotated[
        bool, Setting("Answer no route at first, until brokers had time to register.")
    ] = False
    wait_seconds_for_service: Annotated[int, Setting("How long that is.", unit="s", minimum=0)] = 45
    support_acting_master: Annotated[
        bool, Setting("Show the smallest slave as master while a group has none.")
    ] = False
    enable_all_topic_list: Annotated[bool, Setting("Answer request 206.")] = True
    enable_topic_list: Annotated[bool, Setting("Answer requests 224 and 311 to 313.")] = True
    delete_topic_with_broker_registration: Annotated[
        bool, Setting("A topic missing from a broker's whole table is gone on that broker.")
    ] = False

    # --- brokers ---------------------------------------------------------------------------------
    notify_min_broker_id_changed: Annotated[
        bool, Setting("Tell the members of a broker group when their smallest id changes.")
    ] = False
    scan_not_active_broker_interval: Annotated[
        int, Setting("Pause between scans for silent brokers.", unit="ms", minimum=1)
    ] = 5_000
    un_register_broker_queue_capacity: Annotated[
        int, Setting("Removals that may wait; a further one is refused.", minimum=1)
    ] = 3_000

    # --- connections -----------------------------------------------------------------------------
    server_channel_max_idle_time_seconds: Annotated[
        int, Setting("A connection silent for so long is closed.", unit="s", minimum=1)
    ] = 120
    serialize_type: Annotated[
        SerializeType, Setting("Header encoding of answers.", java="rocketmq.serialize.type")
    ] = SerializeType.JSON

    # --- metrics ---------------------------------------------------------------------------------
    metrics_port: Annotated[
        int | None,
        Setting(
            "Port for Prometheus, 0 draws a free one; without it there is none.",
            minimum=0,
            maximum=65_535,
        ),
    ] = None

    # --- limits that only Skylark has ------------------------------------------------------------
    connection_count_max: Annotated[
        int, Setting("Connections at a time; a further one is closed.", minimum=1)
    ] = 10_000
    broker_count_max: Annotated[
        int, Setting("Broker groups; a further one is refused with code 1.", minimum=1)
    ] = 10_000
    topic_count_max: Annotated[
        int, Setting("Topics; further ones are left out, answered with code 1.", minimum=1)
    ] = 500_000
    kv_size_max: Annotated[
        int, Setting("Size of the KV table; beyond it, code 1.", unit="bytes", minimum=1)
    ] = 4 * 1024 * 1024

    ignored: IgnoredSettings = IgnoredSettings()

    @property
    def black_list(self) -> frozenset[str]:
        """Keys that request 318 may not change."""
        return ALWAYS_BLACK_LISTED | frozenset(filter(None, self.config_black_list.split(";")))

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        return is_loopback(self.bind_address)
