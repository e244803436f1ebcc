"""Settings of the broker: Java's keys, Java's defaults, and a few of our own.

A properties file written for ``mqbroker`` loads unchanged. Its keys fall in three groups:

* :class:`BrokerConfig` holds what has an effect in the broker;
* its sections ``store``, ``replication`` and ``pop`` hold what has an effect in the message store,
  between a master and its slaves, and on POP consumption;
* its section ``ignored`` holds the rest (:mod:`skylark.broker.ignored_settings`), and refuses what
  may not be ignored: access control, TLS, a controller.

**Identity.** :func:`load_broker_config` works out what Java works out at start. A master has the id
0 even if the file names another, and a slave must have a greater one. Without ``brokerName`` the
broker takes the name of the host. Clients connect to ``brokerIP1``: if not given, the address that
the broker binds to, or, where that stands for all addresses, the address of this machine. The HA
port follows the port, as the fast port does: clients and slaves compute both.

**Changes at run time** (request 25) are made by :class:`skylark.broker.live_settings.LiveSettings`.
Most hold at once; what is read at start waits for the next one, as in Java. No setting that holds
a path or a command can be changed that way by any client: :attr:`BrokerConfig.black_list`.

One difference from Java in defaults: ``bindAddress`` is loopback unless set, because nothing
protects a broker from clients that reach it.

Counterpart of Java's ``BrokerConfig`` and ``BrokerStartup``.
"""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Final

import msgspec

from skylark.broker.ignored_settings import IgnoredSettings
from skylark.broker.pop_settings import PopConfig
from skylark.core.config import (
    Config,
    InvalidConfigError,
    Setting,
    load,
    parse_properties,
    settings,
)
from skylark.core.errors import ConfigError
from skylark.core.names import (
    TRACE_TOPIC,
    Address,
    is_loopback,
    parse_addresses,
    reachable_host,
    topic_problem,
)
from skylark.replication.config import ReplicationConfig
from skylark.store.config import BrokerRole, StoreConfig
from skylark.store.timer.timer_store import TimerOptions
from skylark.wire.command import SerializeType

MASTER_ID: Final = 0
REGISTER_PERIOD_MS_MIN: Final = 10_000
REGISTER_PERIOD_MS_MAX: Final = 60_000
TIMER_PRECISIONS_MS: Final = (100, 200, 500, 1_000)

PORT_MAX: Final = 65_535
_INT_MAX: Final = (1 << 31) - 1
#: Settings that are text to us, but name a path, or code to be run, in Java.
_PATHS_AND_CODE: Final = frozenset(
    {
        "configBlackList",
        "messageStorePlugIn",
        "readOnlyCommitLogStorePaths",
        "rocketmqHome",
        "storePathBrokerIdentity",
        "storePathDLedgerCommitLog",
        "storePathEpochFile",
    }
)


class MetricsExporterType(enum.Enum):
    """Whether metrics are served; Java's other exporters are not supported."""

    DISABLE = 0
    PROM = 3


class BrokerConfig(Config, frozen=True, kw_only=True):
    """The settings of a broker; :func:`load_broker_config` fills in those that are not given."""

    store: StoreConfig

    # --- who and where ---

    broker_cluster_name: Annotated[str, Setting("Cluster the broker belongs to.")] = (
        "DefaultCluster"
    )
    broker_name: Annotated[
        str, Setting("Name shared by a master and its slaves.", template="${host.name}")
    ] = "DEFAULT_BROKER"
    broker_id: Annotated[
        int, Setting("0 for the master, else the number of the slave.", minimum=0)
    ] = MASTER_ID
    bind_address: Annotated[
        str, Setting("Address to listen on; beyond loopback nothing protects the broker.")
    ] = "127.0.0.1"
    listen_port: Annotated[
        int,
        Setting(
            "Port to listen on; the fast port is two below. 0 draws free ones.",
            minimum=0,
            maximum=PORT_MAX,
        ),
    ] = 10_911
    ha_listen_port: Annotated[
        int,
        Setting("Port for slaves; 0: the one after listenPort.", minimum=0, maximum=PORT_MAX),
    ] = 0
    broker_ip1: Annotated[
        str | None, Setting("Host that clients are told to connect to.", java="brokerIP1")
    ] = None
    broker_ip2: Annotated[
        str | None, Setting("Host that slaves are told to connect to.", java="brokerIP2")
    ] = None
    namesrv_addr: Annotated[
        str | None,
        Setting("Name servers, as host:port joined by ';'.", template="${NAMESRV_ADDR}"),
    ] = None
    region_id: Annotated[str, Setting("Region told to clients, for traces.")] = "DefaultRegion"
    broker_permission: Annotated[
        int,
        Setting("What the broker allows: 4 read, 2 write, 6 both.", minimum=0, maximum=15),
    ] = 6
    rocketmq_home: Annotated[
        str | None, Setting("Shown only; nothing is read from there.", template="${ROCKETMQ_HOME}")
    ] = None
    broker_config_path: Annotated[
        Path | None,
        Setting("File that request 25 writes; the command line sets it to the file it was given."),
    ] = None
    config_black_list: Annotated[
        str, Setting("Keys, joined by ';', that request 25 may not change.")
    ] = "configBlackList;brokerConfigPath"

    # --- registration ---

    register_name_server_period: Annotated[
        int, Setting("Time between two registrations, kept within 10 and 60 s.", unit="ms")
    ] = 30_000
    register_broker_timeout_mills: Annotated[
        int, Setting("How long a registration may take.", unit="ms", minimum=1)
    ] = 24_000
    force_register: Annotated[
        bool, Setting("Register each time; false: only what a name server does not know yet.")
    ] = True
    compressed_register: Annotated[bool, Setting("Compress registrations.")] = False
    enable_single_topic_register: Annotated[
        bool, Setting("Register a new topic by a request of its own (217).")
    ] = False

    # --- topics and groups ---

    auto_create_topic_enable: Annotated[
        bool, Setting("A send to an unknown topic creates it, if the client asks for that.")
    ] = True
    default_topic_queue_nums: Annotated[
        int, Setting("Most queues of a topic created by a send.", minimum=1, maximum=_INT_MAX)
    ] = 8
    cluster_topic_enable: Annotated[
        bool, Setting("The topic named as the cluster can be read and written.")
    ] = True
    broker_topic_enable: Annotated[
        bool, Setting("The topic named as the broker can be read and written.")
    ] = True
    auto_create_subscription_group: Annotated[
        bool, Setting("A consumer of an unknown group creates it.")
    ] = True
    enable_create_sys_group: Annotated[
        bool, Setting("Groups of the system (CID_RMQ_SYS_...) are created even without that.")
    ] = True
    trace_topic_enable: Annotated[bool, Setting("Create the topic for traces at start.")] = False
    msg_trace_topic_name: Annotated[str, Setting("Name of that topic.")] = TRACE_TOPIC
    trace_on: Annotated[bool, Setting("Tell clients to trace (TRACE_ON).")] = True
    enable_mixed_message_type: Annotated[
        bool, Setting("Topics may have the message type MIXED.")
    ] = False
    validate_system_topic_when_update_topic: Annotated[
        bool, Setting("System topics can be neither changed nor deleted.")
    ] = True
    clear_retry_topic_when_delete_topic: Annotated[
        bool, Setting("A deleted topic takes the POP retry topics of its groups along.")
    ] = True
    enable_split_metadata: Annotated[
        bool, Setting("Answer requests 21 and 201 in pages, if the caller asks for that.")
    ] = True
    split_metadata_size: Annotated[int, Setting("Most entries of such a page.", minimum=1)] = 2_000

    # --- send ---

    reject_transaction_message: Annotated[
        bool, Setting("Refuse transactional messages with code 16.")
    ] = False
    store_reply_message_enable: Annotated[
        bool, Setting("Store replies of request-reply as well.")
    ] = True
    recall_message_enable: Annotated[bool, Setting("Timed messages can be called back (370).")] = (
        False
    )
    allow_recall_when_broker_not_writeable: Annotated[
        bool, Setting("Also on a broker whose brokerPermission forbids writing.")
    ] = True
    start_accept_send_request_time_stamp: Annotated[
        int, Setting("Sends before this time are refused.", unit="ms since 1970", minimum=0)
    ] = 0

    # --- pull ---

    long_polling_enable: Annotated[
        bool, Setting("Hold a pull that finds nothing for as long as the client asks.")
    ] = True
    short_polling_time_mills: Annotated[
        int, Setting("Otherwise hold it for this time.", unit="ms", minimum=0)
    ] = 1_000
    slave_read_enable: Annotated[bool, Setting("A slave serves pulls.")] = False
    lite_pull_message_enable: Annotated[bool, Setting("Serve LITE_PULL_MESSAGE (361).")] = True
    reject_pull_consumer_enable: Annotated[
        bool, Setting("Refuse pull consumers; push consumers are served.")
    ] = False

    # --- filter ---

    enable_property_filter: Annotated[bool, Setting("Allow SQL92 filters.")] = False
    filter_support_retry: Annotated[bool, Setting("Filter messages of the retry topic, too.")] = (
        False
    )
    filter_data_clean_time_span: Annotated[
        int, Setting("How long the filter of an absent group is kept.", unit="ms", minimum=0)
    ] = 86_400_000
    expect_consumer_num_use_filter: Annotated[
        int, Setting("Groups with SQL92 filters that are expected per topic.", minimum=1)
    ] = 32
    max_error_rate_of_bloom_filter: Annotated[
        int, Setting("Error rate of their Bloom filter.", unit="%", minimum=1, maximum=99)
    ] = 20

    # --- consumers ---

    notify_consumer_ids_changed_enable: Annotated[
        bool, Setting("Tell members when their group changes (40).")
    ] = True
    real_time_notify_consumer_change: Annotated[
        bool, Setting("Do so at once; false: every 15 s.")
    ] = True
    channel_expired_timeout: Annotated[
        int, Setting("A client without heartbeat for so long is dropped.", unit="ms", minimum=1)
    ] = 120_000
    subscription_expired_timeout: Annotated[
        int, Setting("How long a subscription given with a pull is kept.", unit="ms", minimum=1)
    ] = 600_000
    flush_consumer_offset_interval: Annotated[
        int, Setting("Time between two writes of consumer offsets.", unit="ms", minimum=1)
    ] = 5_000
    consumer_offset_update_version_step: Annotated[
        int, Setting("Commits that make a new version of the offsets.", minimum=1)
    ] = 500
    use_server_side_reset_offset: Annotated[
        bool, Setting("The broker itself resets offsets (222), the group need not be online.")
    ] = True
    lock_in_strict_mode: Annotated[
        bool,
        Setting("Queue locks are asked of a majority of the replicas; not built, must be false."),
    ] = False
    enable_broadcast_offset_store: Annotated[
        bool, Setting("Keep offsets of broadcast consumers that come through a proxy.")
    ] = True
    broadcast_offset_expire_second: Annotated[
        int, Setting("How long such an offset is kept.", unit="s", minimum=1)
    ] = 120
    broadcast_offset_expire_max_second: Annotated[
        int, Setting("How long at most, while nothing is pulled.", unit="s", minimum=1)
    ] = 300
    enable_register_producer: Annotated[bool, Setting("Keep track of producers.")] = True
    server_load_balancer_enable: Annotated[
        bool, Setting("Assign queues to clients that ask (400).")
    ] = True
    load_balance_poll_name_server_interval: Annotated[
        int, Setting("Time between two looks at routes for that.", unit="ms", minimum=1)
    ] = 30_000

    # --- delayed and timed messages ---

    flush_delay_offset_interval: Annotated[
        int, Setting("Time between two writes of the delay queues' offsets.", unit="ms", minimum=1)
    ] = 10_000
    delay_offset_update_version_step: Annotated[
        int, Setting("Deliveries that make a new version of them.", minimum=1)
    ] = 200
    timer_wheel_enable: Annotated[bool, Setting("Serve timed messages.")] = True
    timer_precision_ms: Annotated[
        int, Setting("Width of a slot of the timer.", unit="ms", minimum=1, maximum=60_000)
    ] = 1_000
    timer_max_delay_sec: Annotated[
        int, Setting("Longest delay of a timed message.", unit="s", minimum=1)
    ] = 259_200
    timer_roll_window_slot: Annotated[
        int, Setting("Delays longer than this are split.", unit="slots", minimum=1)
    ] = 172_800
    timer_congest_num_each_slot: Annotated[
        int, Setting("Most messages of a slot; more are refused.", minimum=1)
    ] = _INT_MAX
    timer_flush_interval_ms: Annotated[
        int, Setting("Time between two writes of the timer's state.", unit="ms", minimum=1)
    ] = 1_000
    timer_enable_retry_until_success: Annotated[
        bool, Setting("Deliver again and again; false: three times.")
    ] = False
    timer_stop_enqueue: Annotated[bool, Setting("Take no messages into the timer.")] = False
    timer_stop_dequeue: Annotated[bool, Setting("Deliver no messages of the timer.")] = False
    timer_skip_unknown_error: Annotated[
        bool, Setting("Skip a timed message whose delivery fails for no known reason.")
    ] = False
    append_topic_for_timer_delete_key: Annotated[
        bool, Setting("A recall names the topic, too: for brokers before 5.5 on the same store.")
    ] = False
    mapped_file_size_timer_log: Annotated[
        int, Setting("Length of a timer log file.", unit="bytes", minimum=68, maximum=_INT_MAX)
    ] = 100 << 20

    # --- transactions ---

    transaction_time_out: Annotated[
        int, Setting("Age of a half message at its first check.", unit="ms", minimum=1)
    ] = 6_000
    transaction_check_max: Annotated[
        int, Setting("Checks after which a half message is given up.", minimum=0)
    ] = 15
    transaction_check_interval: Annotated[
        int, Setting("Time between two rounds of checks.", unit="ms", minimum=1)
    ] = 30_000
    transaction_op_batch_interval: Annotated[
        int, Setting("Time for which decisions are collected.", unit="ms", minimum=1)
    ] = 3_000
    transaction_op_msg_max_size: Annotated[
        int, Setting("Size that ends a collection before its time.", unit="bytes", minimum=1)
    ] = 4_096
    transaction_metric_flush_interval: Annotated[
        int, Setting("Time between two writes of the counts per topic.", unit="ms", minimum=1)
    ] = 10_000

    # --- protection ---

    broker_fast_failure_enable: Annotated[
        bool, Setting("Refuse requests that have waited too long.")
    ] = True
    wait_time_mills_in_send_queue: Annotated[
        int, Setting("How long a send may wait.", unit="ms", minimum=1)
    ] = 200
    wait_time_mills_in_pull_queue: Annotated[
        int, Setting("How long a pull may wait.", unit="ms", minimum=1)
    ] = 5_000
    wait_time_mills_in_lite_pull_queue: Annotated[
        int, Setting("How long a lite pull may wait.", unit="ms", minimum=1)
    ] = 5_000
    wait_time_mills_in_heartbeat_queue: Annotated[
        int, Setting("How long a heartbeat may wait.", unit="ms", minimum=1)
    ] = 31_000
    wait_time_mills_in_transaction_queue: Annotated[
        int, Setting("How long the end of a transaction may wait.", unit="ms", minimum=1)
    ] = 3_000
    wait_time_mills_in_ack_queue: Annotated[
        int, Setting("How long an acknowledgement may wait.", unit="ms", minimum=1)
    ] = 3_000
    wait_time_mills_in_admin_broker_queue: Annotated[
        int, Setting("How long an administrator's request may wait.", unit="ms", minimum=1)
    ] = 5_000
    disable_consume_if_consumer_read_slowly: Annotated[
        bool, Setting("Stop groups that fall too far behind.")
    ] = False
    consumer_fallbehind_threshold: Annotated[
        int, Setting("How far that is.", unit="bytes", minimum=0)
    ] = 16 << 30

    # --- statistics and metrics ---

    max_stats_idle_time_in_minutes: Annotated[
        int, Setting("A statistic that stood still for so long is dropped; negative: 25 h.")
    ] = -1
    metrics_exporter_type: Annotated[
        MetricsExporterType, Setting("PROM: serve metrics to Prometheus.")
    ] = MetricsExporterType.DISABLE
    metrics_prom_exporter_host: Annotated[
        str, Setting("Address to serve them on; empty: bindAddress.")
    ] = ""
    metrics_prom_exporter_port: Annotated[
        int, Setting("Port to serve them on; 0 draws one.", minimum=0, maximum=PORT_MAX)
    ] = 5_557
    metrics_label: Annotated[str, Setting("Further labels, as name:value joined by ','.")] = ""

    # --- connections, and limits of our own ---

    server_channel_max_idle_time_seconds: Annotated[
        int, Setting("A connection silent for so long is closed.", unit="s", minimum=1)
    ] = 120
    serialize_type: Annotated[
        SerializeType, Setting("Header encoding of answers.", java="rocketmq.serialize.type")
    ] = SerializeType.JSON
    busy_poll_micros: Annotated[
        int,
        Setting(
            "Time for which the next request is looked out for before the process sleeps, while"
            " they follow each other that closely; 0: none.",
            unit="us",
            minimum=0,
            maximum=10_000,
        ),
    ] = 200
    connection_count_max: Annotated[
        int, Setting("Connections at a time; a further one is closed.", minimum=1)
    ] = 10_000
    request_count_max: Annotated[
        int, Setting("Requests in hand at a time; a further one gets code 2.", minimum=1)
    ] = 10_000
    write_buffer_size_max: Annotated[
        int, Setting("Answers that a client leaves unread before it is cut off.", minimum=1)
    ] = 64 << 20
    held_size_max: Annotated[
        int,
        Setting(
            "Unanswered requests and unread answers of all clients; beyond it, sends and pulls get"
            " code 2.",
            unit="bytes",
            minimum=1,
        ),
    ] = 512 << 20
    held_pull_count_max: Annotated[
        int, Setting("Pulls held at a time; a further one is answered at once.", minimum=1)
    ] = 100_000
    pull_max_bytes: Annotated[
        int,
        Setting("Most bytes of one pull with bulk=true.", unit="bytes", minimum=1, maximum=8 << 20),
    ] = 4 << 20
    topic_count_max: Annotated[int, Setting("Topics; a further one is not created.", minimum=1)] = (
        100_000
    )
    group_count_max: Annotated[
        int, Setting("Consumer groups; a further one is not created.", minimum=1)
    ] = 100_000

    slave_sync_interval: Annotated[
        int,
        Setting("How often a slave copies the tables of its master.", unit="ms", minimum=100),
    ] = 10_000

    pop: PopConfig = PopConfig()
    replication: ReplicationConfig = ReplicationConfig()
    ignored: IgnoredSettings = IgnoredSettings()

    def check(self) -> Iterable[str]:
        if self.is_slave and self.broker_id == MASTER_ID:
            yield "brokerId: Slave's brokerId must be > 0"
        if not self.is_slave and self.broker_id != MASTER_ID:
            yield f"brokerId: {self.broker_id} is the id of a slave; a master has {MASTER_ID}"
        for key, name in (
            ("brokerClusterName", self.broker_cluster_name),
            ("brokerName", self.broker_name),
        ):
            # Both name a topic, to which no client can send if the name is not allowed; Java
            # starts all the same. A host name, the default, often has dots.
            if not name.strip() or len(name) > 255 or not name.isprintable():
                yield f"{key}: {name!r:.300} is not a name"
        if self.trace_topic_enable and (problem := topic_problem(self.msg_trace_topic_name)):
            yield f"msgTraceTopicName: {problem}"
        if self.lock_in_strict_mode:
            yield (
                "lockInStrictMode=true: locks on queues are granted by this broker alone, a"
                " majority of its replicas cannot be asked; set it to false"
            )
        if self.listen_port in (1, 2):
            yield f"listenPort: {self.listen_port} leaves no room for the fast port, two below"
        if self.namesrv_addr:
            try:
                parse_addresses(self.namesrv_addr)
            except ConfigError as error:
                yield (
                    f"namesrvAddr: The Name Server Address[{self.namesrv_addr}] illegal, please"
                    f' set it as follows, "127.0.0.1:9876;192.168.0.1:9876": {error}'
                )

    # --- settings that are read through a rule ---

    @property
    def is_slave(self) -> bool:
        return self.store.broker_role is BrokerRole.SLAVE

    @property
    def fast_port(self) -> int:
        """The second port ("VIP channel"), which clients compute from the first."""
        return self.listen_port - 2

    @property
    def ha_port(self) -> int:
        return self.ha_listen_port or self.listen_port + 1

    @property
    def broker_addr(self) -> str:
        """What clients are told to connect to."""
        return str(Address(self.broker_ip1 or self.bind_address, self.listen_port))

    @property
    def ha_server_addr(self) -> str:
        """What slaves are told to connect to."""
        host = self.broker_ip2 or self.broker_ip1 or self.bind_address
        return str(Address(host, self.ha_port))

    @property
    def namesrv_addresses(self) -> tuple[Address, ...]:
        return parse_addresses(self.namesrv_addr) if self.namesrv_addr else ()

    @property
    def register_period_ms(self) -> int:
        period_ms = self.register_name_server_period
        return max(REGISTER_PERIOD_MS_MIN, min(REGISTER_PERIOD_MS_MAX, period_ms))

    @property
    def timer_options(self) -> TimerOptions:
        """What the timer's files are made with; only four precisions exist, as in Java."""
        precision_ms = self.timer_precision_ms
        fitting = [ms for ms in TIMER_PRECISIONS_MS if ms <= precision_ms]
        return TimerOptions(
            precision_ms=max(fitting, default=TIMER_PRECISIONS_MS[0]),
            roll_window_slots=self.timer_roll_window_slot,
            log_file_size=self.mapped_file_size_timer_log,
        )

    @property
    def black_list(self) -> frozenset[str]:
        """Keys that request 25 may not change."""
        return ALWAYS_BLACK_LISTED | frozenset(filter(None, self.config_black_list.split(";")))

    @property
    def is_loopback(self) -> bool:
        """Whether only processes of this machine can connect."""
        return is_loopback(self.bind_address)

    def listening_on(self, port: int) -> BrokerConfig:
        """The settings of a broker that has drawn its port."""
        return msgspec.structs.replace(self, listen_port=port, ha_listen_port=port + 1)


#: Never changed by request 25, also if ``configBlackList`` does not name them.
ALWAYS_BLACK_LISTED: Final = _PATHS_AND_CODE | {
    info.java for info in settings(BrokerConfig) if info.kind is Path
}


def load_broker_config(
    source: str | bytes | Mapping[str, str] = "",
    overrides: Mapping[str, str] | None = None,
    *,
    variables: Mapping[str, str] | None = None,
) -> BrokerConfig:
    """The settings of a properties file, with what follows from them and from the machine.

    Variables: ``user.home``, ``host.name``, ``local.address`` (of this machine, for a broker that
    listens on all of its addresses), ``ROCKETMQ_HOME``, ``NAMESRV_ADDR``; what is missing is not
    used. Raises InvalidConfigError that names every bad key.
    """
    variables = variables or {}
    texts = parse_properties(source) if isinstance(source, str | bytes) else dict(source)
    texts.update(overrides or {})
    role = texts.get("brokerRole", BrokerRole.ASYNC_MASTER.name).strip()
    if role != BrokerRole.SLAVE.name:
        texts["brokerId"] = str(MASTER_ID)
    return _settled(load(BrokerConfig, texts, variables=variables), variables)


def _settled(config: BrokerConfig, variables: Mapping[str, str]) -> BrokerConfig:
    """The same settings with the addresses that follow from the others filled in."""
    found = reachable_host(config.bind_address, variables.get("local.address"))
    host = config.broker_ip1 or found
    if host is None:
        raise InvalidConfigError(
            [
                f"brokerIP1: bindAddress={config.bind_address} stands for all addresses of this"
                " machine; say which one clients shall use"
            ]
        )
    return msgspec.structs.replace(
        config,
        rocketmq_home=config.rocketmq_home or sys.prefix,
        broker_ip1=host,
        # As in Java, brokerIP1 does not change where slaves connect to.
        broker_ip2=config.broker_ip2 or found or host,
        ha_listen_port=config.ha_listen_port or (config.listen_port and config.listen_port + 1),
    )
