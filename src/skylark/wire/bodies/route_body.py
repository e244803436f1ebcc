"""Where topics live: routes (105), the cluster (106) and the members of one broker group (901).

Broker ids are integer keys: bare in the dialect, quoted in the standard form that 105 gives to
clients from 4.9.4 on. Counterpart of Java's ``TopicRouteData``, ``ClusterInfo``,
``BrokerMemberGroup``.
"""

from __future__ import annotations

import msgspec

from skylark.wire.bodies.common_body import Body
from skylark.wire.bodies.config import TopicQueueMappingInfo
from skylark.wire.fields import Int32


class QueueData(Body, kw_only=True):
    """The queues of one topic on one broker group."""

    broker_name: str = ""
    read_queue_nums: Int32 = 0
    write_queue_nums: Int32 = 0
    perm: Int32 = 0
    topic_sys_flag: Int32 = 0
    topic_syn_flag: Int32 | None = None  # the name that old 4.x name servers use

    def __post_init__(self) -> None:
        if self.topic_syn_flag is not None:
            self.topic_sys_flag, self.topic_syn_flag = self.topic_syn_flag, None


class BrokerData(Body, kw_only=True):
    """The addresses of one broker group; id 0 is the master."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    zone_name: str | None = None
    enable_acting_master: bool = False


class TopicRouteData(Body, kw_only=True):
    """All that a client has to know about a topic (105; with queues only, 217)."""

    order_topic_conf: str | None = None
    queue_datas: list[QueueData] = msgspec.field(default_factory=list)
    broker_datas: list[BrokerData] = msgspec.field(default_factory=list)
    filter_server_table: dict[str, list[str]] | None = msgspec.field(default_factory=dict)
    topic_queue_mapping_by_broker: dict[str, TopicQueueMappingInfo] | None = None


class ClusterInfo(Body, kw_only=True):
    """All brokers and clusters that a name server knows (106)."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, list[str]] = msgspec.field(default_factory=dict)


class BrokerMemberGroup(Body, kw_only=True):
    """A master and its slaves."""

    cluster: str = ""
    broker_name: str = ""
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)


class GetBrokerMemberGroupResponseBody(Body, kw_only=True):
    """Answer of 901."""

    broker_member_group: BrokerMemberGroup | None = None
