"""Codes and versions, against the numbers that Java's enumerations have."""

from __future__ import annotations

import pytest

from skylark.wire import codes
from skylark.wire.codes import (
    CURRENT_VERSION,
    LANGUAGE_CODES,
    LANGUAGE_NAMES,
    Perm,
    PullSysFlag,
    RequestCode,
    ResponseCode,
    version_name,
)


@pytest.mark.parametrize(
    ("version", "name"),
    [
        (0, "V3_0_0_SNAPSHOT"),
        (1, "V3_0_0_ALPHA1"),
        (6, "V3_0_0_BETA5"),
        (7, "V3_0_0_BETA6_SNAPSHOT"),
        (15, "V3_0_0_FINAL"),
        (16, "V3_0_1_SNAPSHOT"),
        (37, "V3_0_11"),
        (45, "V3_0_15"),
        (46, "V3_1_0_SNAPSHOT"),
        (62, "V3_1_8_SNAPSHOT"),
        (85, "V3_2_9"),
        (86, "V3_3_1_SNAPSHOT"),
        (121, "V3_4_9"),
        (211, "V3_9_9"),
        (213, "V4_0_0"),
        (317, "V4_5_2"),
        (333, "V4_6_0"),
        (373, "V4_8_0"),
        (393, "V4_9_0"),
        (399, "V4_9_3"),
        (401, "V4_9_4"),
        (409, "V4_9_8"),
        (413, "V5_0_0"),
        (433, "V5_1_0"),
        (453, "V5_2_0"),
        (473, "V5_3_0"),
        (475, "V5_3_1"),
        (479, "V5_3_3"),
        (493, "V5_4_0"),
        (513, "V5_5_0"),
        (611, "V5_9_9"),
        (612, "HIGHER_VERSION"),
        (613, "HIGHER_VERSION"),
        (2**31 - 1, "HIGHER_VERSION"),
        (-1, "UNKNOWN(-1)"),
    ],
)
def test_version_name(version: int, name: str) -> None:
    assert version_name(version) == name


def test_named_versions_have_their_codes() -> None:
    named = {
        name: value
        for name, value in vars(codes).items()
        if isinstance(value, int) and name.startswith(("V", "HIGHER"))
    }
    assert len(named) == 10
    for name, value in named.items():
        assert version_name(value) == name
    assert version_name(CURRENT_VERSION) == "V5_5_0"


def test_every_request_code_of_java_is_here() -> None:
    # 169 in 5.5.0, the five of ACL 1.0 that ended with 5.2, and three of our own.
    assert len(RequestCode) == 169 + 5 + 3
    assert len(RequestCode.__members__) == len(RequestCode), "two names for one code"
    assert RequestCode(310).name == "SEND_MESSAGE_V2"
    assert RequestCode(200053).name == "CHANGE_MESSAGE_INVISIBLETIME"
    assert RequestCode(5001).name == "SWITCH_TIMER_ENGINE"
    assert RequestCode(9001).name == "LOG_CHECK"
    assert (RequestCode(9002).name, RequestCode(9003).name) == ("SEND_HALVES", "END_HALVES")


def test_response_codes() -> None:
    assert len(ResponseCode.__members__) == len(ResponseCode) == 64
    assert ResponseCode(0).name == "SUCCESS"
    assert ResponseCode(29).name == "INVALID_PARAMETER"
    assert ResponseCode(604).name == "ILLEGAL_OPERATION"
    assert ResponseCode(1500).name == "GO_AWAY"
    assert [code for code in ResponseCode if 2000 <= code <= 2016] == list(range(2000, 2017))


def test_languages_count_from_zero_in_order() -> None:
    assert list(LANGUAGE_CODES.values()) == list(range(14))
    assert LANGUAGE_NAMES[0] == "JAVA"
    assert LANGUAGE_NAMES[9] == "GO"
    assert LANGUAGE_CODES["NODE_JS"] == 13


def test_flags_are_plain_integer_arithmetic() -> None:
    assert Perm.READ | Perm.WRITE == 6
    assert type(6 & Perm.WRITE) is int
    assert 22 & PullSysFlag.LITE_PULL
    assert not 22 & PullSysFlag.COMMIT_OFFSET
    assert sum(PullSysFlag) == 31
