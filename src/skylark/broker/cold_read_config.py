"""Settings of cold reads: limits for groups that read old messages from the disk.

A message is *cold* when so much was written after it that the memory no longer has its page. With
``coldDataFlowControlEnable`` a group that has read too many bytes of cold messages within five
seconds is served late (:mod:`skylark.broker.pull.cold_reads`), so that it does not take the disk
from the others. Java has these keys in ``BrokerConfig`` and ``MessageStoreConfig``.
"""

from __future__ import annotations

from typing import Annotated

from skylark.core.config import Config, Setting


class ColdReadConfig(Config, frozen=True, kw_only=True):
    """The section ``cold_reads`` of the broker's settings."""

    cold_data_flow_control_enable: Annotated[
        bool, Setting("Limit groups that read old messages from the disk.")
    ] = False
    cg_cold_read_threshold: Annotated[
        int, Setting("What a group may read of them in 5 s.", unit="bytes", minimum=0)
    ] = 3 << 20
    global_cold_read_threshold: Annotated[
        int, Setting("What all groups may read of them in 5 s.", unit="bytes", minimum=0)
    ] = 100 << 20
    access_message_in_memory_hot_ratio: Annotated[
        int,
        Setting(
            "Messages are old when this share of the memory was written since.",
            unit="%",
            minimum=0,
            maximum=100,
        ),
    ] = 26
