"""The layouts against hand-written bytes, and struct against numpy."""

from __future__ import annotations

import struct
import subprocess
import sys

import numpy as np
import pytest

from skylark.core.hashing import java_hash
from skylark.wire import layout


@pytest.mark.spec("store.12.9")
def test_queue_entry() -> None:
    entry = layout.CQ_ENTRY.pack(0, 115, java_hash("TagA"))
    assert entry.hex() == "000000000000000000000073000000000027a807"


@pytest.mark.spec("store.12.8")
def test_a_negative_hash_is_sign_extended_in_the_queue() -> None:
    entry = layout.CQ_ENTRY.pack(0, 115, java_hash("TopicTest"))
    assert entry[12:].hex() == "ffffffff8e987641"


def test_magic_codes() -> None:
    codes = (layout.MAGIC_V1, layout.MAGIC_V2, layout.MAGIC_BLANK)
    assert struct.pack(">iii", *codes).hex() == "daa320a7daa320abcbd43194"


def test_pre_blank_entry() -> None:
    assert layout.CQ_PRE_BLANK.hex() == "00000000000000007fffffff0000000000000000"


def test_the_first_index_entry_follows_the_slots() -> None:
    key_hash, slots = 2746024, 5_000_000
    slot_position = layout.INDEX_HEADER_SIZE + key_hash % slots * layout.INDEX_SLOT_SIZE
    entry_position = layout.INDEX_HEADER_SIZE + slots * layout.INDEX_SLOT_SIZE
    assert slot_position == 10984136
    assert entry_position + 1 * layout.INDEX_ENTRY_SIZE == 20000060


def test_heads_by_the_hosts_bits_of_sys_flag() -> None:
    sizes = {
        sys_flag: layout.RECORD_HEADS[(sys_flag & layout.FLAG_HOSTS_V6_MASK) >> 4].size
        for sys_flag in (0x0, 0x10, 0x20, 0x30, 0x7CF)
    }
    assert sizes == {0x0: 88, 0x10: 100, 0x20: 100, 0x30: 112, 0x7CF: 88}


@pytest.mark.parametrize(
    ("dtype", "layout_struct", "values"),
    [
        (layout.cq_dtype(), layout.CQ_ENTRY, (1, -2, 1 << 40)),
        (layout.batch_cq_dtype(), layout.BATCH_CQ_ENTRY, (1, 2, -3, 4, 5, -6, -1, 8)),
        (layout.index_entry_dtype(), layout.INDEX_ENTRY, (1, 1 << 40, -3, 4)),
        (
            layout.record_head_dtype(),
            layout.RECORD_HEADS[0],
            (1, 2, 3, 4, 5, -6, 7, 8, 9, b"born/4/4", 11, b"store/44", 13, -14, 15),
        ),
    ],
)
def test_dtypes_read_what_structs_write(
    dtype: np.dtype[np.void], layout_struct: struct.Struct, values: tuple[object, ...]
) -> None:
    read = np.frombuffer(layout_struct.pack(*values), dtype)[0].item()
    assert tuple(bytes(x) if isinstance(x, bytes) else x for x in read) == values


def test_the_tail_is_the_same_in_every_head() -> None:
    for head, born, store in zip(layout.RECORD_HEADS, (8, 20, 8, 20), (8, 8, 20, 20), strict=True):
        raw = head.pack(*range(9), bytes(born), 10, bytes(store), 12, 13, 14)
        tail = np.frombuffer(raw[-layout.RECORD_TAIL_SIZE :], layout.record_tail_dtype())[0]
        assert tail.item() == (12, 13, 14)


def test_index_slots() -> None:
    slots = np.frombuffer(layout.INDEX_SLOT.pack(7), layout.index_slot_dtype())
    assert slots.tolist() == [7]


def test_the_codecs_do_not_load_numpy_or_compressors() -> None:
    program = (
        "import sys, skylark.wire.message, skylark.wire.ha_frame\n"
        "sys.exit(' '.join({'numpy', 'lz4', 'zstandard'} & set(sys.modules)) or None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
