"""Settings of the name server: Java's keys and defaults, and some that only Skylark has.

A properties file written for ``mqnamesrv`` loads unchanged. Its keys fall in two groups:

* :class:`NamesrvConfig` has the settings with an effect. Request 318 changes them at run time;
  those that are read once (:data:`READ_AT_START`) take effect at the next start, as in Java.
* :data:`IGNORED` has those for thread pools and Netty options of the Java process, or for
  features that are elsewhere here. They are accepted, and request 319 returns them, so that tools
  find every key they know; they have no effect.

Two differences from Java. ``bindAddress`` is loopback unless set, because a name server has no
access control: any client that reaches it can redirect producers. And the serialize type, a system
property in Java, is a key like any other.

Counterpart of Java's ``NamesrvConfig`` and ``NettyServerConfig``.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from skylark.core.config import Config, Setting
from skylark.core.ignored_keys import ignored_section
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


#: Keys of the Java process that have no effect (:mod:`skylark.core.ignored_keys`).
IGNORED: Final[dict[str, str]] = {
    "no other environment is asked for topics unknown here": """
        productEnvName=center clusterTest=false
        """,
    "the controller is a process of its own": "enableControllerInNamesrv=false",
    "one event loop answers all requests": """
        clientRequestThreadPoolNums=8 defaultThreadPoolNums=16
        """,
    "requests wait in the kernel, see back-pressure": """
        clientRequestThreadPoolQueueCapacity=50000 defaultThreadPoolQueueCapacity=10000
        """,
    "every shutdown is orderly, with GO_AWAY, and takes as long as requests in hand": """
        enableShutdownGracefully=false shutdownWaitTimeSeconds=30
        """,
    "an option of Netty": """
        serverAsyncSemaphoreValue=64 serverOnewaySemaphoreValue=256 serverSelectorThreads=3
        serverCallbackExecutorThreads=0 serverWorkerThreads=8 serverNettyWorkerGroupEnable=true
        serverPooledByteBufAllocatorEnable=true useEpollNativeSelector=false
        writeBufferHighWaterMark=0 writeBufferLowWaterMark=0
        """,
    "the backlog is always 1024, Java's default": "serverSocketBacklog=1024",
    "the kernel sizes its buffers": "serverSocketRcvBufSize=0 serverSocketSndBufSize=0",
}

if TYPE_CHECKING:

    class IgnoredSettings(Config, frozen=True, kw_only=True):
        """Keys of the Java process, accepted and returned but without effect."""

else:
    IgnoredSettings = ignored_section(IGNORED, module=__name__)


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
