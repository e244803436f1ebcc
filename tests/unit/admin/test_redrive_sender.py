"""What a dead letter becomes, as far as that can be told without a broker."""

from __future__ import annotations

import pytest

from skylark.admin.errors import NotFoundError
from skylark.admin.redrive_sender import REDRIVEN_FROM, restore
from skylark.wire.message import MessageRecord, decode_record, encode_record, pack_host
from skylark.wire.properties import encode_properties

HOST = pack_host("127.0.0.1", 10911)
USER = {"TAGS": "A", "KEYS": "k1 k2", "UNIQ_KEY": "U1", "colour": "red", "__SHARDINGKEY": "s"}
RETRIES = {
    "RETRY_TOPIC": "orders",
    "ORIGIN_MESSAGE_ID": "ORIGIN",
    "REAL_TOPIC": "%RETRY%g",
    "REAL_QID": "0",
    "DELAY": "0",
    "WAIT": "false",
    "RECONSUME_TIME": "16",
    "MAX_RECONSUME_TIMES": "16",
    "MSG_REGION": "DefaultRegion",
    "TRACE_ON": "true",
    "CLUSTER": "DefaultCluster",
    "CONSUME_START_TIME": "1",
    "TIMER_OUT_MS": "1",
    "POP_CK": "x",
    "TRAN_MSG": "true",
    "PGROUP": "pg",
    REDRIVEN_FROM: "an earlier letter",
}


def letter_of(properties: dict[str, str]) -> MessageRecord:
    return decode_record(
        encode_record(
            topic="%DLQ%g",
            body=b"x",
            properties=encode_properties(properties).encode(),
            queue_id=0,
            queue_offset=3,
            log_offset=77,
            born_host=HOST,
            store_host=HOST,
            born_timestamp=1,
            store_timestamp=2,
        )
    )


def test_only_what_the_user_sent_is_left() -> None:
    record = letter_of({**USER, **RETRIES})
    letter = restore(record, "g")
    assert (letter.origin, letter.destination, letter.unique_id) == ("orders", "orders", "U1")
    assert letter.properties == {**USER, "WAIT": "true", REDRIVEN_FROM: record.offset_id}


def test_retries_of_the_group_keep_where_they_come_from() -> None:
    record = letter_of({**USER, **RETRIES})
    letter = restore(record, "g", "group")
    assert (letter.origin, letter.destination) == ("orders", "%RETRY%g")
    assert letter.properties["RETRY_TOPIC"] == "orders"
    assert letter.properties["ORIGIN_MESSAGE_ID"] == "ORIGIN"
    assert "REAL_TOPIC" not in letter.properties


def test_the_origin_that_the_dead_letter_names_wins() -> None:
    assert restore(letter_of({**RETRIES, "DLQ_ORIGIN_TOPIC": "first"}), "g").origin == "first"


def test_a_letter_without_unique_id_gets_one() -> None:
    record = letter_of({"RETRY_TOPIC": "orders"})
    letter = restore(record, "g")
    assert letter.unique_id == letter.properties["UNIQ_KEY"] == record.offset_id


def test_a_letter_that_does_not_know_its_topic_is_refused() -> None:
    with pytest.raises(NotFoundError, match="has no RETRY_TOPIC"):
        restore(letter_of(USER), "g")
