"""Tables in pages."""

from __future__ import annotations

import pytest

from skylark.broker.table_pages import PageRequest, page_of
from skylark.wire.bodies.common_body import DataVersion

VERSION = DataVersion(counter=3, timestamp=5)
SAME = '{"counter":3,"stateVersion":0,"timestamp":5}'
NAMES = ["d", "a", "c", "b", "e"]


@pytest.mark.parametrize(
    ("request_", "page"),
    [
        (PageRequest(seq=0, data_version="", count=2), ["a", "b"]),
        (PageRequest(seq=2, data_version=SAME, count=2), ["c", "d"]),
        (PageRequest(seq=4, data_version=SAME, count=2), ["e"]),
        (PageRequest(seq=5, data_version=SAME, count=2), []),
        (PageRequest(seq=99, data_version=SAME, count=2), []),
        # the version is another, absent or no version at all: from the beginning
        (PageRequest(seq=2, data_version=SAME.replace("3", "4"), count=2), ["a", "b"]),
        (PageRequest(seq=2, count=2), ["a", "b"]),
        (PageRequest(seq=2, data_version=" ", count=2), ["a", "b"]),
        (PageRequest(seq=2, data_version="{nonsense", count=2), ["a", "b"]),
        (PageRequest(seq=2, data_version="[1]", count=2), ["a", "b"]),
        # never more than the broker allows
        (PageRequest(seq=0, data_version=SAME, count=100), ["a", "b", "c"]),
        (PageRequest(seq=0), ["a", "b", "c"]),
        # nonsense
        (PageRequest(seq=-5, data_version=SAME, count=2), ["a", "b"]),
        (PageRequest(seq=0, data_version=SAME, count=0), []),
        (PageRequest(seq=0, data_version=SAME, count=-1), []),
    ],
)
def test_pages(request_: PageRequest, page: list[str]) -> None:
    assert page_of(NAMES, VERSION, request_, count_max=3) == page


def test_whoever_asks_for_no_page_wants_all() -> None:
    assert PageRequest().is_whole
    assert not PageRequest(seq=0).is_whole
    assert not PageRequest(data_version="").is_whole
    assert not PageRequest(count=1).is_whole
