"""Headers of the controller, which elects masters and keeps the set of replicas in step.

An *epoch* counts masters, a *sync state set* holds the ids of the replicas that are in step; both
travel so that a replica with an old picture is refused ("fenced"). ``invokeTime`` is the sender's
clock. Counterpart of the classes of Java's package ``header.controller``.
"""

from __future__ import annotations

from skylark.wire.fields import Header, Int32, Int64


class AlterSyncStateSetRequestHeader(Header, kw_only=True, rename="camel"):
    """CONTROLLER_ALTER_SYNC_STATE_SET; the new set is in the body."""

    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_epoch: Int32 | None = None
    invoke_time: Int64 = 0


class AlterSyncStateSetResponseHeader(Header, kw_only=True, rename="camel"):
    """The epoch of the set after the change."""

    new_sync_state_set_epoch: Int32 = 0


class ElectMasterRequestHeader(Header, kw_only=True, rename="camel"):
    """CONTROLLER_ELECT_MASTER: asks the controller to choose the master of a broker set."""

    cluster_name: str
    broker_name: str
    #: -1: any suitable replica.
    broker_id: Int64 = -1
    designate_elect: bool = False
    invoke_time: Int64 | None = None


class ElectMasterResponseHeader(Header, kw_only=True, rename="camel"):
    """The master after the election."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class RegisterBrokerToControllerRequestHeader(Header, kw_only=True, rename="camel"):
    """CONTROLLER_REGISTER_BROKER: a broker with an id reports its address to the controller."""

    cluster_name: str | None = None
    broker_name: str | None = None
    broker_id: Int64 | None = None
    broker_address: str | None = None
    invoke_time: Int64 = 0


class RegisterBrokerToControllerResponseHeader(Header, kw_only=True, rename="camel"):
    """The master of the broker that registered."""

    cluster_name: str | None = None
    broker_name: str | None = None
    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None


class GetReplicaInfoRequestHeader(Header, kw_only=True, rename="camel"):
    """CONTROLLER_GET_REPLICA_INFO: asks for the master and the replicas in sync of a broker set."""

    broker_name: str | None = None


class GetReplicaInfoResponseHeader(Header, kw_only=True, rename="camel"):
    """The master of that broker; the replicas in step are in the body."""

    master_broker_id: Int64 | None = None
    master_address: str | None = None
    master_epoch: Int32 | None = None


class GetMetaDataResponseHeader(Header, kw_only=True, rename="camel"):
    """CONTROLLER_GET_METADATA_INFO: the controllers and their leader."""

    group: str | None = None
    controller_leader_id: str | None = None
    controller_leader_address: str | None = None
    is_leader: bool = False
    peers: str | None = None


class NotifyBrokerRoleChangedRequestHeader(Header, kw_only=True, rename="camel"):
    """NOTIFY_BROKER_ROLE_CHANGED: the controller tells a broker who is master."""

    master_address: str | None = None
    master_epoch: Int32 | None = None
    sync_state_set_epoch: Int32 | None = None
    master_broker_id: Int64 | None = None


class CleanControllerBrokerDataRequestHeader(Header, kw_only=True, rename="camel"):
    """CLEAN_BROKER_DATA: forget replicas that are gone for good."""

    cluster_name: str | None = None
    broker_name: str
    #: Joined by semicolons; absent: all.
    broker_controller_ids_to_clean: str | None = None
    is_clean_living_broker: bool = False
    invoke_time: Int64 = 0


class GetNextBrokerIdRequestHeader(Header, kw_only=True, rename="camel"):
    """CONTROLLER_GET_NEXT_BROKER_ID: asks for an id that no broker of the set has yet."""

    cluster_name: str | None = None
    broker_name: str | None = None


class GetNextBrokerIdResponseHeader(Header, kw_only=True, rename="camel"):
    """The id that the next replica may apply for."""

    cluster_name: str | None = None
    broker_name: str | None = None
    next_broker_id: Int64 | None = None


class ApplyBrokerIdRequestHeader(Header, kw_only=True, rename="camel"):
    """CONTROLLER_APPLY_BROKER_ID; the check code makes a repeated application harmless."""

    cluster_name: str | None = None
    broker_name: str | None = None
    applied_broker_id: Int64 | None = None
    register_check_code: str | None = None


class ApplyBrokerIdResponseHeader(Header, kw_only=True, rename="camel"):
    """Whose application was accepted."""

    cluster_name: str | None = None
    broker_name: str | None = None
