"""Announcements that overtake each other: whatever their order, no topic is lost.

A model broker makes and changes topics. Each change is announced alone under its version; whole
tables are sent at any time, and one may be *torn*, that is claim a version whose change it lacks
or already hold the next. The name server gets all of it in an arbitrary order.
"""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from skylark.core.errors import BrokerError
from skylark.namesrv.broker_registration import IN_FLIGHT_MS, Registration
from skylark.namesrv.config import NamesrvConfig
from skylark.namesrv.routes import RouteTables
from skylark.wire.bodies.common_body import DataVersion
from skylark.wire.bodies.config import TopicConfig
from skylark.wire.bodies.route_body import QueueData

NOW = 1_700_000_000_000
ADDR = "10.0.0.1:10911"

Table = dict[str, int]  # topic -> number of queues


def version(counter: int) -> DataVersion:
    return DataVersion(counter=counter, timestamp=NOW - 1_000 + counter)


def announcement(table: Table, counter: int, connection: object = "one") -> Registration:
    return Registration(
        cluster="c",
        broker_name="b",
        broker_addr=ADDR,
        broker_id=0,
        ha_server_addr="10.0.0.1:10912",
        connection=connection,
        version=version(counter),
        topics={
            topic: TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
            for topic, queues in table.items()
        },
        enable_acting_master=False,
    )


def send(known: RouteTables, *announcements: Registration, now_ms: int = NOW) -> list[int]:
    """The response code of each."""
    codes = []
    for each in announcements:
        try:
            known.register(each, now_ms)
            codes.append(0)
        except BrokerError as error:
            codes.append(error.code)
    return codes


def served(known: RouteTables) -> Table:
    found = {}
    for topic in known.topics().topic_list:
        route = known.route(topic)
        assert route is not None
        found[topic] = route.queue_datas[0].read_queue_nums
    return found


@pytest.fixture
def known() -> RouteTables:
    return RouteTables(NamesrvConfig())


WHOLE = {"b": 1, "TBW102": 8}


# --- the race of a broker's first moments -------------------------------------------------------


def test_a_topic_made_while_its_broker_registers_for_the_first_time(known: RouteTables) -> None:
    """Seen on Apache: no route for more than 45 s. Here it is there with the second of the two."""
    single, whole = announcement({"new": 4}, 1), announcement(WHOLE, 0)
    assert send(known, single) == [1]
    assert served(known) == {}
    assert send(known, whole) == [0]
    assert served(known) == {**WHOLE, "new": 4}


def test_the_same_in_the_other_order(known: RouteTables) -> None:
    single, whole = announcement({"new": 4}, 1), announcement(WHOLE, 0)
    assert send(known, whole, single) == [0, 0]
    assert served(known) == {**WHOLE, "new": 4}


def test_a_table_that_claims_the_version_but_lacks_the_topic(known: RouteTables) -> None:
    single, whole = announcement({"new": 4}, 1), announcement(WHOLE, 1)
    assert send(known, single, whole) == [1, 0]
    assert served(known) == {**WHOLE, "new": 4}


def test_a_refused_topic_that_was_deleted_meanwhile_stays_deleted(known: RouteTables) -> None:
    assert send(known, announcement({"new": 4}, 1), announcement(WHOLE, 2)) == [1, 0]
    assert served(known) == WHOLE


def test_a_refused_topic_is_forgotten_with_its_connection(known: RouteTables) -> None:
    send(known, announcement({"new": 4}, 1))
    known.connection_closed("one")
    send(known, announcement(WHOLE, 0, "two"))
    assert served(known) == WHOLE


def test_a_refused_topic_is_not_taken_by_another_connection(known: RouteTables) -> None:
    send(known, announcement({"new": 4}, 1), announcement(WHOLE, 0, "two"))
    assert served(known) == WHOLE


def test_refused_topics_are_remembered_up_to_a_limit(
    known: RouteTables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("skylark.namesrv.routes.EARLY_COUNT_MAX", 2)
    codes = send(known, *(announcement({f"t{counter}": 4}, counter) for counter in (1, 2, 3)))
    assert codes == [1, 1, 1]
    send(known, announcement(WHOLE, 0))
    assert served(known) == {**WHOLE, "t1": 4, "t2": 4}


# --- later changes ------------------------------------------------------------------------------


def test_a_late_table_does_not_undo_a_change(known: RouteTables) -> None:
    before, after = {**WHOLE, "t": 4}, {**WHOLE, "t": 8}
    send(known, announcement(before, 0), announcement({"t": 8}, 1), announcement(before, 0))
    assert served(known) == after
    # nor does it make the version that is known fall back
    assert known.query_version("c", ADDR, version(1), NOW) == (False, version(1))


def test_a_late_table_with_deletion_does_not_remove_a_new_topic() -> None:
    known = RouteTables(NamesrvConfig(delete_topic_with_broker_registration=True))
    send(known, announcement(WHOLE, 0), announcement({"t": 4}, 1), announcement(WHOLE, 0))
    assert served(known) == {**WHOLE, "t": 4}
    send(known, announcement(WHOLE, 2))
    assert served(known) == WHOLE


def test_a_topic_registered_alone_survives_a_table_under_way() -> None:
    known = RouteTables(NamesrvConfig(delete_topic_with_broker_registration=True))
    send(known, announcement(WHOLE, 0))
    known.register_topic("t", [QueueData(broker_name="b", read_queue_nums=4)], "one", NOW)
    send(known, announcement(WHOLE, 0), now_ms=NOW + IN_FLIGHT_MS - 1)
    assert served(known) == {**WHOLE, "t": 4}
    send(known, announcement(WHOLE, 2), now_ms=NOW + IN_FLIGHT_MS)
    assert served(known) == WHOLE


def test_a_change_hidden_behind_a_known_version_is_taken(known: RouteTables) -> None:
    before, after = {**WHOLE, "t": 4}, {**WHOLE, "t": 8}
    send(known, announcement(before, 1), announcement(after, 1))
    assert served(known) == after


def test_a_lost_announcement_leaves_the_version_behind(known: RouteTables) -> None:
    send(known, announcement(WHOLE, 0), announcement({"second": 4}, 2))
    assert known.query_version("c", ADDR, version(2), NOW) == (True, version(0))
    send(known, announcement({"first": 4}, 1))
    assert known.query_version("c", ADDR, version(2), NOW) == (True, version(1))
    whole = {**WHOLE, "first": 4, "second": 4}
    send(known, announcement(whole, 2))
    assert known.query_version("c", ADDR, version(2), NOW) == (False, version(2))
    assert served(known) == whole


def test_a_few_topics_at_once_are_no_gap(known: RouteTables) -> None:
    send(known, announcement(WHOLE, 0), announcement({"t1": 4, "t2": 4}, 2))
    assert known.query_version("c", ADDR, version(2), NOW) == (False, version(2))


@pytest.mark.parametrize(
    ("connection", "now_ms"),
    [("two", NOW), ("one", NOW + IN_FLIGHT_MS)],
    ids=["after a restart", "after a while"],
)
def test_a_broker_that_went_back_is_believed(
    known: RouteTables, connection: str, now_ms: int
) -> None:
    send(known, announcement({**WHOLE, "t": 8}, 5))
    send(known, announcement({**WHOLE, "t": 4}, 3, connection), now_ms=now_ms)
    assert served(known)["t"] == 4
    assert known.query_version("c", ADDR, version(3), now_ms) == (False, version(3))


def test_a_broker_with_a_new_store_is_not_older(known: RouteTables) -> None:
    send(known, announcement({**WHOLE, "t": 8}, 5))
    young = msgspec.structs.replace(
        announcement({**WHOLE, "t": 4}, 0),
        version=DataVersion(counter=0, timestamp=NOW + 1),
    )
    send(known, young)
    assert served(known)["t"] == 4


# --- any order ----------------------------------------------------------------------------------


class Story(msgspec.Struct):
    """What a broker did, and the announcements of it in the order of their arrival."""

    final: Table
    final_counter: int
    arrivals: list[Registration]


@st.composite
def stories(draw: st.DrawFn, *, torn: bool, lossy: bool) -> Story:
    changes = draw(
        st.lists(
            st.tuples(st.sampled_from(["t1", "t2", "t3"]), st.integers(1, 9)),
            min_size=1,
            max_size=5,
        )
    )
    tables: list[Table] = [dict(WHOLE)]
    announcements = []
    for counter, (topic, queues) in enumerate(changes, start=1):
        tables.append({**tables[-1], topic: queues})
        announcements.append(announcement({topic: queues}, counter))
    last = len(changes)
    wholes = draw(st.lists(st.integers(0, last), min_size=1, max_size=3))
    for counter in wholes:
        shift = draw(st.sampled_from([-1, 0, 1])) if torn else 0
        content = tables[min(last, max(0, counter + shift))]
        announcements.append(announcement(content, counter))
    if lossy:
        kept = draw(st.lists(st.booleans(), min_size=len(announcements)))
        announcements = [each for each, keep in zip(announcements, kept, strict=False) if keep]
    arrivals = draw(st.permutations(announcements))
    return Story(final=tables[-1], final_counter=last, arrivals=list(arrivals))


@pytest.mark.parametrize("delete", [False, True])
@given(story=stories(torn=True, lossy=False))
@settings(max_examples=400, deadline=None)
def test_when_all_has_arrived_all_is_known(delete: bool, story: Story) -> None:
    known = RouteTables(NamesrvConfig(delete_topic_with_broker_registration=delete))
    send(known, *story.arrivals)
    assert served(known) == story.final


@given(story=stories(torn=False, lossy=True))
@settings(max_examples=400, deadline=None)
def test_a_version_is_claimed_only_if_all_up_to_it_is_known(story: Story) -> None:
    known = RouteTables(NamesrvConfig())
    send(known, *story.arrivals)
    changed, _ = known.query_version("c", ADDR, version(story.final_counter), NOW)
    if not changed:
        assert served(known) == story.final


@pytest.mark.parametrize("delete", [False, True])
@given(story=stories(torn=True, lossy=True))
@settings(max_examples=400, deadline=None)
def test_the_next_whole_table_repairs_everything(delete: bool, story: Story) -> None:
    known = RouteTables(NamesrvConfig(delete_topic_with_broker_registration=delete))
    send(known, *story.arrivals)
    final = announcement(story.final, story.final_counter)
    send(known, final, now_ms=NOW + IN_FLIGHT_MS)
    assert served(known) == story.final
    assert known.query_version("c", ADDR, version(story.final_counter), NOW)[0] is False
