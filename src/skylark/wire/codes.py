"""Numbers of the remoting protocol: request and response codes, languages, versions, flag bits.

The names are Java's (``RequestCode``, ``ResponseCode``, ``LanguageCode``, ``MQVersion`` of
RocketMQ 5.5.0), so that a code in a log line or a book is found here by searching. A code, language
or version that is not listed stays a plain ``int`` wherever it travels: nothing here rejects it.

Flag classes are ``IntEnum`` rather than ``IntFlag``: ``flags & PullSysFlag.SUSPEND`` is then plain
integer arithmetic, cheap enough for every message.
"""

from __future__ import annotations

from enum import IntEnum

#: Stamped on every request and response that leaves this process.
CURRENT_VERSION = 513

LANGUAGE_CODES: dict[str, int] = {
    "JAVA": 0,
    "CPP": 1,
    "DOTNET": 2,
    "PYTHON": 3,
    "DELPHI": 4,
    "ERLANG": 5,
    "RUBY": 6,
    "OTHER": 7,
    "HTTP": 8,
    "GO": 9,
    "PHP": 10,
    "OMS": 11,
    "RUST": 12,
    "NODE_JS": 13,
}
LANGUAGE_NAMES: dict[int, str] = {code: name for name, code in LANGUAGE_CODES.items()}

# Versions at which a peer's behaviour changes. A version is the ordinal of a release in Java's
# list of releases, see version_name().
V3_0_7_SNAPSHOT = 28  #: consumers answer 220 and 221
V3_0_11 = 37  #: REGISTER_BROKER carries a RegisterBrokerBody
V3_1_8_SNAPSHOT = 62  #: consumers answer 307 and 309
V3_4_9 = 121  #: maxReconsumeTimes of a request overrides that of the group
V4_1_0_SNAPSHOT = 232  #: brokers below it know no filter expressions but tags
V4_9_3 = 399  #: clients up to it do not sign _UNIQUE_KEY_QUERY
V4_9_4 = 401  #: route answers in standard JSON
V5_0_0 = 413  #: the compressed registration ends with queue mappings
V5_3_1 = 475  #: clients above it understand GO_AWAY; older ones are served until the end
HIGHER_VERSION = 612  #: shown for everything newer than the list


def _version_names() -> tuple[str, ...]:
    """The releases in order: each one after its snapshot, ten per minor line.

    The early years are irregular: 3.0.0 had named pre-releases, 3.0 ran to patch 15, and the lines
    3.3 to 3.9 began with patch 1.
    """
    names = ["V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1"]
    names += [f"V3_0_0_BETA{n}" for n in range(1, 6)]
    names += [f"V3_0_0_BETA{n}{end}" for n in range(6, 10) for end in ("_SNAPSHOT", "")]
    names += ["V3_0_0_FINAL"]
    lines = [(3, 0, range(1, 16)), (3, 1, range(10)), (3, 2, range(10))]
    lines += [(3, minor, range(1, 10)) for minor in range(3, 10)]
    lines += [(major, minor, range(10)) for major in (4, 5) for minor in range(10)]
    for major, minor, patches in lines:
        for patch in patches:
            name = f"V{major}_{minor}_{patch}"
            names += [f"{name}_SNAPSHOT", name]
    return (*names, "HIGHER_VERSION")


_VERSION_NAMES = _version_names()
assert len(_VERSION_NAMES) == HIGHER_VERSION + 1
assert _VERSION_NAMES[CURRENT_VERSION] == "V5_5_0"


def version_name(version: int) -> str:
    """``513`` is ``V5_5_0``; anything newer than the list is ``HIGHER_VERSION``."""
    if version < 0:
        return f"UNKNOWN({version})"
    return _VERSION_NAMES[min(version, HIGHER_VERSION)]


class RequestCode(IntEnum):
    """What a request asks for; no client or server sends the codes without a comment.

    The catalogue has the contents of each, and the reference pages are generated from both.
    """

    # messages, offsets, clients
    SEND_MESSAGE = 10  #: store a message; fields with long names
    PULL_MESSAGE = 11  #: read messages of a queue from an offset on
    QUERY_MESSAGE = 12  #: messages by key within a time range
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14  #: the offset a group has committed for a queue
    UPDATE_CONSUMER_OFFSET = 15  #: commit an offset of a group
    UPDATE_AND_CREATE_TOPIC = 17  #: make a topic, or change it
    UPDATE_AND_CREATE_TOPIC_LIST = 18  #: the same for several topics
    GET_ALL_TOPIC_CONFIG = 21  #: all topics of a broker, for slaves and tools
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25  #: change settings while the broker runs
    GET_BROKER_CONFIG = 26  #: the settings of a broker
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28  #: runtime figures of a broker: rates, offsets, disk
    SEARCH_OFFSET_BY_TIMESTAMP = 29  #: the offset of the message stored at a time
    GET_MAX_OFFSET = 30  #: the offset that the next message will get
    GET_MIN_OFFSET = 31  #: the offset of the oldest message still held
    GET_EARLIEST_MSG_STORETIME = 32  #: when the oldest message still held was stored
    VIEW_MESSAGE_BY_ID = 33  #: one message by its offset in the commit log
    HEART_BEAT = 34  #: a client sends its groups and subscriptions
    UNREGISTER_CLIENT = 35  #: a client leaves a producer or consumer group
    CONSUMER_SEND_MSG_BACK = 36  #: deliver a failed message again, after a delay
    END_TRANSACTION = 37  #: commit or roll back a half message, or report an unknown state
    GET_CONSUMER_LIST_BY_GROUP = 38  #: the client ids of a group
    CHECK_TRANSACTION_STATE = 39  #: the broker asks a producer how a transaction ended
    NOTIFY_CONSUMER_IDS_CHANGED = 40  #: the members of a group changed
    LOCK_BATCH_MQ = 41  #: lock queues for orderly consumption
    UNLOCK_BATCH_MQ = 42  #: release such locks
    GET_ALL_CONSUMER_OFFSET = 43  #: all committed offsets, for slaves
    GET_ALL_DELAY_OFFSET = 45  #: the progress of the delay levels, for slaves
    CHECK_CLIENT_CONFIG = 46  #: check a subscription: whether its filter is valid
    GET_CLIENT_CONFIG = 47
    # ACL 1.0 administration, until 5.2; no longer in 5.5.0
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    # timer state, for slaves
    GET_TIMER_CHECK_POINT = 60  #: the progress of the timer, for slaves
    GET_TIMER_METRICS = 61  #: timed messages by topic, for slaves
    # name server
    PUT_KV_CONFIG = 100  #: set a key of the name server's table
    GET_KV_CONFIG = 101  #: one key of that table
    DELETE_KV_CONFIG = 102  #: remove a key of that table
    REGISTER_BROKER = 103  #: a broker announces itself and its topics
    UNREGISTER_BROKER = 104  #: a broker unregisters itself
    GET_ROUTEINFO_BY_TOPIC = 105  #: which brokers have a topic, with how many queues
    GET_BROKER_CLUSTER_INFO = 106  #: clusters, brokers and their addresses
    # administration of broker and name server
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP = 200  #: make a consumer group, or change it
    GET_ALL_SUBSCRIPTIONGROUP_CONFIG = 201  #: all groups of a broker, for slaves and tools
    GET_TOPIC_STATS_INFO = 202  #: first and last offset of each queue of a topic
    GET_CONSUMER_CONNECTION_LIST = 203  #: members and subscriptions of a group
    GET_PRODUCER_CONNECTION_LIST = 204  #: members of a producer group
    WIPE_WRITE_PERM_OF_BROKER = 205  #: remove the write permission of a broker from all routes
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206  #: the names of all topics
    DELETE_SUBSCRIPTIONGROUP = 207  #: delete a consumer group
    GET_CONSUME_STATS = 208  #: the progress of a group, queue by queue
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215  #: delete a topic with its messages
    DELETE_TOPIC_IN_NAMESRV = 216  #: forget the route of a topic
    REGISTER_TOPIC_IN_NAMESRV = 217  #: a broker announces one topic
    GET_KVLIST_BY_NAMESPACE = 219  #: all keys of a namespace of the table
    RESET_CONSUMER_CLIENT_OFFSET = 220  #: the broker resets the offsets of a member
    GET_CONSUMER_STATUS_FROM_CLIENT = 221  #: the offsets of one member
    INVOKE_BROKER_TO_RESET_OFFSET = 222  #: reset the offsets of a group to a time
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223  #: the offsets of all members of a group
    GET_TOPICS_BY_CLUSTER = 224  #: the topics of a cluster
    UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST = 225  #: several groups at once
    QUERY_TOPIC_CONSUME_BY_WHO = 300  #: the groups that consume a topic
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303  #: first, last and consumed time of each queue
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304  #: topics named as clusters and brokers
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305  #: topics of the system on a broker
    CLEAN_EXPIRED_CONSUMEQUEUE = 306  #: remove queues whose messages are all deleted
    GET_CONSUMER_RUNNING_INFO = 307  #: settings, queues and figures of a member
    QUERY_CORRECTION_OFFSET = 308  #: the smallest offset among groups of a topic
    CONSUME_MESSAGE_DIRECTLY = 309  #: have one member consume one message, now
    SEND_MESSAGE_V2 = 310  #: store a message; fields with letters
    GET_UNIT_TOPIC_LIST = 311  #: topics of the mode "unit"
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312  #: topics that unit subscribers have
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313  #: of these, topics without that mode
    CLONE_GROUP_OFFSET = 314  #: give a group the offsets of another
    VIEW_BROKER_STATS_DATA = 315  #: one statistic by minute, hour and day
    CLEAN_UNUSED_TOPIC = 316  #: remove queues of topics that no longer exist
    GET_BROKER_CONSUME_STATS = 317  #: progress of all groups of a broker
    UPDATE_NAMESRV_CONFIG = 318  #: change settings of a running name server
    GET_NAMESRV_CONFIG = 319  #: the settings of a name server
    SEND_BATCH_MESSAGE = 320  #: store several messages in one queue, all or none
    QUERY_CONSUME_QUEUE = 321  #: entries of a consume queue as stored in its files
    QUERY_DATA_VERSION = 322  #: whether the name server has the newest topics of a broker
    RESUME_CHECK_HALF_MESSAGE = 323  #: check a half message again that was given up
    SEND_REPLY_MESSAGE = 324  #: an answer of request-reply; long names
    SEND_REPLY_MESSAGE_V2 = 325  #: the same with letters
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326  #: the broker sends the answer to the client that waits
    ADD_WRITE_PERM_OF_BROKER = 327  #: restore that write permission
    GET_ALL_PRODUCER_INFO = 328  #: all producers of a broker
    DELETE_EXPIRED_COMMITLOG = 329  #: delete old log files now
    QUERY_TOPICS_BY_CONSUMER = 343  #: the topics that a group consumes
    QUERY_SUBSCRIPTION_BY_CONSUMER = 345  #: what a group subscribes to of a topic
    GET_TOPIC_CONFIG = 351  #: the settings of a topic
    GET_SUBSCRIPTIONGROUP_CONFIG = 352  #: the settings of a group
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353  #: whether a group may read a topic
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354  #: compare queues in RocksDB with files
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355  #: tables in RocksDB as JSON files
    LITE_PULL_MESSAGE = 361  #: PULL_MESSAGE of lite pull consumers
    RECALL_MESSAGE = 370  #: take back a timed message
    # server-side assignment
    QUERY_ASSIGNMENT = 400  #: the queues that the broker assigns to a member
    SET_MESSAGE_REQUEST_MODE = 401  #: pull or POP, for a group and a topic
    GET_ALL_MESSAGE_REQUEST_MODE = 402  #: all such choices, for slaves
    # static topics
    UPDATE_AND_CREATE_STATIC_TOPIC = 513  #: a topic whose queues may move
    # broker groups and replication
    GET_BROKER_MEMBER_GROUP = 901  #: master and slaves of a name
    ADD_BROKER = 902  #: start a broker in a container
    REMOVE_BROKER = 903  #: stop a broker in a container
    BROKER_HEARTBEAT = 904  #: a sign of life of a broker
    NOTIFY_MIN_BROKER_ID_CHANGE = 905  #: the smallest id of a group has changed
    EXCHANGE_BROKER_HA_INFO = 906  #: master and slave exchange their positions
    GET_BROKER_HA_STATUS = 907  #: slaves and their progress
    RESET_MASTER_FLUSH_OFFSET = 908  #: send a slave the flushed offset of its master
    # controller
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001  #: which replicas are in sync
    CONTROLLER_ELECT_MASTER = 1002  #: choose a master
    CONTROLLER_REGISTER_BROKER = 1003  #: a broker joins its group
    CONTROLLER_GET_REPLICA_INFO = 1004  #: the master of a broker group
    CONTROLLER_GET_METADATA_INFO = 1005  #: the leader of the controllers
    CONTROLLER_GET_SYNC_STATE_DATA = 1006  #: the replicas in sync of several groups
    GET_BROKER_EPOCH_CACHE = 1007  #: the epochs of masters in a log
    NOTIFY_BROKER_ROLE_CHANGED = 1008  #: the controller sends a broker its role
    UPDATE_CONTROLLER_CONFIG = 1009  #: change settings of a controller
    GET_CONTROLLER_CONFIG = 1010  #: the settings of a controller
    CLEAN_BROKER_DATA = 1011  #: remove a broker from the controller
    CONTROLLER_GET_NEXT_BROKER_ID = 1012  #: the id that the next broker would get
    CONTROLLER_APPLY_BROKER_ID = 1013  #: take that id
    BROKER_CLOSE_CHANNEL_REQUEST = 1014
    CHECK_NOT_ACTIVE_BROKER_REQUEST = 1015
    GET_BROKER_LIVE_INFO_REQUEST = 1016
    GET_SYNC_STATE_DATA_REQUEST = 1017
    RAFT_BROKER_HEART_BEAT_EVENT_REQUEST = 1018
    # cold data
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001  #: limit a group's reads of old data
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002  #: lift that limit
    GET_COLD_DATA_FLOW_CTR_INFO = 2003  #: all such limits
    SET_COMMITLOG_READ_MODE = 2004  #: how log files are read ahead
    # users and access control lists
    AUTH_CREATE_USER = 3001  #: make a user
    AUTH_UPDATE_USER = 3002  #: change a user
    AUTH_DELETE_USER = 3003  #: delete a user
    AUTH_GET_USER = 3004  #: one user
    AUTH_LIST_USER = 3005  #: all users
    AUTH_CREATE_ACL = 3006  #: allow or deny something to a user
    AUTH_UPDATE_ACL = 3007  #: change what is allowed
    AUTH_DELETE_ACL = 3008  #: delete what is allowed
    AUTH_GET_ACL = 3009  #: what a user may do
    AUTH_LIST_ACL = 3010  #: what all users may do
    # timer
    SWITCH_TIMER_ENGINE = 5001  #: keep timed messages in files or in RocksDB
    # private to Skylark
    LOG_CHECK = 9001  #: a slave asks whether both logs have the same last bytes
    SEND_HALVES = 9002  #: store many half messages, each with its own answer
    END_HALVES = 9003  #: end many transactions, each with its own answer
    # pop consumption: these do not fit the binary header (int16)
    POP_MESSAGE = 200050  #: take messages, which are hidden from others for a while
    ACK_MESSAGE = 200051  #: acknowledge a message that was taken
    PEEK_MESSAGE = 200052  #: read messages without taking them
    CHANGE_MESSAGE_INVISIBLETIME = 200053  #: hide a message for longer
    NOTIFICATION = 200054  #: wait until there are messages to take
    POLLING_INFO = 200055  #: how many requests wait for a queue
    POP_ROLLBACK = 200056  #: move the state of POP from RocksDB back to the log
    # lite topics
    POP_LITE_MESSAGE = 200070  #: take messages of lite topics
    LITE_SUBSCRIPTION_CTL = 200071  #: subscribe to lite topics
    ACK_LITE_MESSAGE = 200072  #: messages of lite topics are done with
    NOTIFY_UNSUBSCRIBE_LITE = 200073  #: a subscription to a lite topic has ended
    GET_BROKER_LITE_INFO = 200074  #: figures of lite topics on a broker
    GET_PARENT_TOPIC_INFO = 200075  #: the topic that lite topics belong to
    GET_LITE_TOPIC_INFO = 200076  #: one lite topic
    GET_LITE_CLIENT_INFO = 200077  #: the lite topics of a client
    GET_LITE_GROUP_INFO = 200078  #: lag of a group on lite topics
    TRIGGER_LITE_DISPATCH = 200079  #: dispatch new messages of lite topics now
    BATCH_ACK_MESSAGE = 200151  #: acknowledge several messages that were taken


class ResponseCode(IntEnum):
    """How a request ended."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    CONTROLLER_JRAFT_INTERNAL_ERROR = 2015
    CONTROLLER_BROKER_LIVE_INFO_NOT_EXISTS = 2016
    LMQ_QUOTA_EXCEEDED = 2017
    LITE_SUBSCRIPTION_QUOTA_EXCEEDED = 2018
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002


class PullSysFlag(IntEnum):
    """Bits of ``sysFlag`` in a pull request."""

    COMMIT_OFFSET = 1
    SUSPEND = 2
    SUBSCRIPTION = 4
    CLASS_FILTER = 8
    LITE_PULL = 16


class Perm(IntEnum):
    """Permission bits of a topic or a broker's queues; a normal topic has 6."""

    INHERIT = 1
    WRITE = 2
    READ = 4
    PRIORITY = 8


class TopicSysFlag(IntEnum):
    """Bits of ``topicSysFlag``."""

    UNIT = 1
    UNIT_SUB = 2
