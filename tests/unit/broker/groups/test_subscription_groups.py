"""Consumer groups: built in, created by use, changed by administrators; bans and retry delays."""

from __future__ import annotations

import logging

import pytest

from skylark.broker.groups.subscription_groups import GroupTable
from skylark.broker.table_pages import PageRequest
from skylark.core.errors import BrokerError, InvalidParameterError
from skylark.store.config_files import SUBSCRIPTION_GROUPS
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import (
    GroupRetryPolicy,
    GroupRetryPolicyType,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
)
from skylark.wire.bodies.slave_sync_body import SubscriptionGroupWrapper
from skylark.wire.codes import RequestCode
from skylark.wire.fastjson import decode_body, encode_body
from tests.unit.broker.tables import GOLDEN, NOW_MS, SteppingClock, live_settings, recorded

BUILT_IN = {
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    "CID_RMQ_SYS_TRANS",
}


class Groups(GroupTable):
    """A table that records the versions that it publishes."""

    def __init__(self, **settings: str) -> None:
        self.settings = live_settings(**settings)
        super().__init__(self.settings, SteppingClock())
        self.published: list[DataVersion] = []
        self.changes.subscribe(self.published.append)


def group(name: str, **attributes: str) -> SubscriptionGroupConfig:
    return SubscriptionGroupConfig(group_name=name, attributes=attributes)


# --- at start and by use ---


def test_built_in_groups() -> None:
    table = Groups()
    assert {config.group_name for config in table} == BUILT_IN
    assert table.version == DataVersion(timestamp=NOW_MS)


def test_reading_creates_with_java_defaults() -> None:
    table = Groups()
    assert table.get("G") is None
    created = table.find("G")
    assert created == SubscriptionGroupConfig(
        group_name="G",
        consume_enable=True,
        consume_from_min_enable=True,
        consume_broadcast_enable=True,
        retry_queue_nums=1,
        retry_max_times=16,
        broker_id=0,
        which_broker_when_consume_slowly=1,
        notify_consumer_ids_changed_enable=True,
        consume_timeout_minute=15,
        group_retry_policy=GroupRetryPolicy(type=GroupRetryPolicyType.CUSTOMIZED),
    )
    assert table.find("G") is created
    assert "G" in table
    assert (table.version.counter, len(table.published)) == (1, 1)


def test_what_is_not_created() -> None:
    table = Groups(autoCreateSubscriptionGroup="false")
    assert table.find("G") is None
    assert table.find("CID_RMQ_SYS_X") is not None  # of the system
    none = Groups(autoCreateSubscriptionGroup="false", enableCreateSysGroup="false")
    assert none.find("CID_RMQ_SYS_X") is None
    assert none.find("TOOLS_CONSUMER") is not None  # built in
    every = Groups()
    for bad in ("a b", "", "g" * 121):
        assert every.find(bad) is None
    assert every.find("g" * 120) is not None
    assert len(none.published) == 0


def test_groups_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    table = Groups(groupCountMax="9")
    assert table.find("G") is not None
    with caplog.at_level(logging.WARNING):
        assert table.find("H") is None
    assert "raise groupCountMax" in caplog.text
    with pytest.raises(BrokerError, match="raise groupCountMax"):
        table.update(group("H"))
    table.update(group("G"))  # no further one


# --- changed by administrators ---


def test_a_group_as_a_real_mqadmin_sends_it() -> None:
    (request,) = (
        command
        for is_request, command in recorded(
            "admin-updateSubGroup", RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        )
        if is_request
    )
    table = Groups()
    table.update(decode_body(SubscriptionGroupConfig, request.body or b""))
    created = table.get("golden_admin_cg")
    assert created is not None
    assert (created.retry_max_times, created.retry_queue_nums) == (3, 2)
    assert (created.consume_broadcast_enable, created.consume_from_min_enable) == (False, False)
    assert encode_body(created) == request.body
    assert (table.version.counter, len(table.published)) == (1, 1)


def test_every_update_is_a_change() -> None:
    table = Groups()
    table.update(group("G"))
    table.update(group("G"))
    assert (table.version.counter, len(table.published)) == (2, 2)


def test_attributes_are_merged() -> None:
    table = Groups()
    table.update(group("G", **{"+priority.factor": "7"}))
    table.update(group("G"))
    found = table.get("G")
    assert found is not None
    assert found.attributes == {"priority.factor": "7"}
    with pytest.raises(
        BrokerError, match=r"^unsupported key: lite\.sub\.model: .* no lite topics yet$"
    ):
        table.update(group("G", **{"+lite.sub.model": "Shared"}))


def test_several_groups_at_once_or_none() -> None:
    table = Groups()
    body = encode_body(SubscriptionGroupList(group_config_list=[group("A"), group("B")]))
    table.update_all(decode_body(SubscriptionGroupList, body).group_config_list)
    assert ("A" in table, "B" in table, table.version.counter, len(table.published)) == (
        True,
        True,
        2,
        1,
    )
    with pytest.raises(InvalidParameterError) as caught:
        table.update_all([group("C"), group("a b")])
    assert caught.value.code == 29
    assert caught.value.remark.startswith("The specified group: a b, contains illegal characters")
    with pytest.raises(BrokerError):
        table.update_all([group("C"), group("D", **{"+no": "1"})])
    assert "C" not in table
    table.update_all([])
    assert len(table.published) == 1


def test_a_deleted_group_takes_its_bans_along() -> None:
    table = Groups()
    table.find("G")
    table.set_may_read("G", "T", False)
    assert table.delete("G")
    assert "G" not in table
    assert table.may_read("G", "T")
    assert table.version.counter == 3
    assert not table.delete("G")
    assert table.version.counter == 3


def test_a_slow_group_is_stopped_until_an_administrator_allows_it_again() -> None:
    table = Groups()
    running = table.find("G")
    table.stop_consuming("G")
    stopped = table.get("G")
    assert stopped is not None
    assert running is not None
    assert (running.consume_enable, stopped.consume_enable) == (True, False)
    assert (table.version.counter, len(table.published)) == (2, 2)
    table.stop_consuming("G")
    table.stop_consuming("unknown")
    assert len(table.published) == 2
    table.update(group("G"))
    assert table.find("G") == group("G")


# --- bans ---


def test_a_ban_is_bit_2_and_concerns_one_topic() -> None:
    table = Groups()
    table.set_may_read("G", "T", False)
    assert not table.may_read("G", "T")
    assert table.may_read("G", "U")
    assert table.may_read("H", "T")
    assert table.snapshot().forbidden_table == {"G": {"T": 4}}
    assert (table.version.counter, len(table.published)) == (1, 1)
    table.set_may_read("G", "T", False)
    assert len(table.published) == 1


def test_lifting_a_ban_leaves_the_others() -> None:
    """Java lifts all bans of the group, and forgets to write that down."""
    table = Groups()
    table.set_may_read("G", "T", False)
    table.set_may_read("G", "U", False)
    table.set_may_read("G", "T", True)
    assert (table.may_read("G", "T"), table.may_read("G", "U")) == (True, False)
    assert (table.version.counter, len(table.published)) == (3, 3)
    table.set_may_read("G", "U", True)
    assert table.snapshot().forbidden_table == {}


def test_bits_of_others_stay() -> None:
    stored = SUBSCRIPTION_GROUPS.table_type(forbidden_table={"G": {"T": 1, "U": -5}})
    table = Groups()
    table.load(stored)
    assert table.may_read("G", "T")
    assert table.may_read("G", "U")  # a negative number bans nothing
    table.set_may_read("G", "T", False)
    assert table.snapshot().forbidden_table["G"]["T"] == 5
    table.set_may_read("G", "T", True)
    assert table.snapshot().forbidden_table["G"]["T"] == 1


def test_bans_are_limited() -> None:
    table = Groups(groupCountMax="1", topicCountMax="1")
    table.set_may_read("G", "T", False)
    with pytest.raises(BrokerError, match="too many groups with bans: 1"):
        table.set_may_read("H", "T", False)
    with pytest.raises(BrokerError, match="too many bans of group G: 1"):
        table.set_may_read("G", "U", False)
    table.set_may_read("G", "T", True)
    assert table.snapshot().forbidden_table == {}


# --- for slaves and the disk ---


def test_pages_bring_the_bans_of_their_groups() -> None:
    table = Groups()
    table.set_may_read("CID_ONSAPI_PULL", "T", False)
    table.set_may_read("TOOLS_CONSUMER", "T", False)
    assert len(table.page(PageRequest()).subscription_group_table) == 8
    page = table.page(PageRequest(seq=0, data_version="", count=4))
    assert list(page.subscription_group_table) == sorted(BUILT_IN)[:4]
    assert page.forbidden_table == {"CID_ONSAPI_PULL": {"T": 4}}
    version = encode_body(page.data_version).decode()
    rest = table.page(PageRequest(seq=4, data_version=version, count=4))
    assert list(rest.subscription_group_table) == sorted(BUILT_IN)[4:]
    assert rest.forbidden_table == {"TOOLS_CONSUMER": {"T": 4}}
    table.settings.update("enableSplitMetadata=false\n", NOW_MS)
    assert len(table.page(PageRequest(seq=4, count=1)).subscription_group_table) == 8


def test_a_slave_gets_what_a_real_one_got() -> None:
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    (_, request), (_, answer) = recorded("slave-sync", code)
    theirs = decode_body(SubscriptionGroupWrapper, answer.body or b"")
    table = Groups()
    ext = request.ext or {}
    ours = table.page(
        PageRequest(
            seq=int(ext["groupSeq"]), data_version=ext["dataVersion"], count=int(ext["maxGroupNum"])
        )
    )
    assert ours.subscription_group_table == theirs.subscription_group_table
    assert ours.data_version.counter == theirs.data_version.counter == 0
    assert str(len(table)) == (answer.ext or {})["totalGroupNum"]


def test_a_table_of_a_real_broker_comes_back_as_it_was() -> None:
    content = (GOLDEN / "store-basic/config/subscriptionGroup.json").read_bytes()
    stored = SUBSCRIPTION_GROUPS.decode(content)
    table = Groups()
    table.load(stored)
    assert table.snapshot() == stored
    assert table.version.counter == 4  # one step for each group that its consumers created
    assert {c.group_name for c in table} - BUILT_IN == {
        "golden_pull_cg",
        "golden_retry_cg",
        "golden_sql_cg",
        "golden_tag_cg",
    }


def test_a_snapshot_does_not_follow_the_table() -> None:
    table = Groups()
    table.set_may_read("G", "T", False)
    before = table.snapshot()
    table.find("H")
    table.set_may_read("G", "U", False)
    assert "H" not in before.subscription_group_table
    assert before.forbidden_table == {"G": {"T": 4}}
