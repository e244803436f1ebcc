"""Success responses of name server and broker."""

from __future__ import annotations

from skylark.net.success_response import UNSET_REMARK, success
from skylark.wire.bodies.common_body import GroupList
from skylark.wire.command import Command
from skylark.wire.headers.offset import OffsetResponseHeader


def test_success_has_what_it_is_given() -> None:
    asked = Command(code=14, opaque=9)
    bare = success(asked)
    assert (bare.code, bare.opaque, bare.is_response) == (0, 9, True)
    assert (bare.remark, bare.ext, bare.body) == (None, None, None)
    full = success(
        asked,
        header=OffsetResponseHeader(offset=5),
        body=GroupList(group_list=["g"]),
        remark=UNSET_REMARK,
    )
    assert (full.ext, full.body) == ({"offset": "5"}, b'{"groupList":["g"]}')
    assert full.remark == "not set any response code"
