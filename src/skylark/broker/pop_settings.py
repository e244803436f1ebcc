"""Settings of POP consumption: Java's keys and defaults.

Keys of Java's broker that have no effect here stand in :mod:`skylark.broker.ignored_settings`, with
the reason. Counterpart of the ``pop`` and ``revive`` settings of Java's ``BrokerConfig``.
"""

from __future__ import annotations

import enum
from typing import Annotated, Final

from skylark.core.config import Config, Setting
from skylark.store.config import milliseconds

_INT_MAX: Final = (1 << 31) - 1


class RequestMode(enum.Enum):
    """How a group gets messages, where 401 has set nothing."""

    PULL = 0
    POP = 1


class PopConfig(Config, frozen=True, kw_only=True):
    """Settings of POP consumption."""

    # --- which queues a client gets (400) ---

    default_message_request_mode: Annotated[
        RequestMode, Setting("PULL or POP, for groups that request 401 has set nothing for.")
    ] = RequestMode.PULL
    default_pop_share_queue_num: Annotated[
        int,
        Setting(
            "Clients that share a queue, where 401 has set nothing; 0 or less: all.",
            minimum=-_INT_MAX,
            maximum=_INT_MAX,
        ),
    ] = -1

    # --- pops ---

    pop_from_retry_probability: Annotated[
        int,
        Setting("Pops that look into the retry topic first.", unit="%", minimum=0, maximum=100),
    ] = 20
    pop_from_retry_probability_for_priority: Annotated[
        int,
        Setting(
            "The same, for pops that read queues by priority.", unit="%", minimum=0, maximum=100
        ),
    ] = 0
    priority_order_asc: Annotated[
        bool, Setting("The last queue of a topic of type PRIORITY comes first; false: queue 0.")
    ] = True
    init_pop_offset_by_check_msg_in_mem: Annotated[
        bool,
        Setting(
            "A new group starts at the first message, if that is in memory, whatever its initMode."
        ),
    ] = True
    enable_pop_message_threshold: Annotated[
        bool, Setting("Pop nothing from a queue with too many messages in flight.")
    ] = False
    pop_inflight_message_threshold: Annotated[
        int, Setting("How many are too many, per group and queue.", minimum=0)
    ] = 10_000
    pop_response_return_actual_retry_topic: Annotated[
        bool, Setting("Retried messages keep the name of their retry topic.")
    ] = False
    enable_retry_topic_v2: Annotated[
        bool, Setting("Retry topics are named %RETRY%group+topic, not %RETRY%group_topic.")
    ] = False
    retrieve_message_from_pop_retry_topic_v1: Annotated[
        bool,
        Setting("With that, messages in retry topics of the old name are popped as well."),
    ] = True
    use_separate_retry_queue: Annotated[
        bool, Setting("Retry topics have as many queues as their topic; false: one.")
    ] = False

    # --- waiting pops ---

    max_pop_polling_size: Annotated[
        int, Setting("Pops that wait at a time; a further one gets code 209.", minimum=0)
    ] = 100_000
    pop_polling_size: Annotated[
        int, Setting("The same, per topic, group and queue.", minimum=0)
    ] = 1_024
    pop_long_polling_force_notify_interval: Annotated[
        int,
        Setting(
            "Each message whose offset is a multiple of this wakes a pop, whatever its filter; 0:"
            " none does.",
            minimum=0,
        ),
    ] = 800
    enable_notify_after_pop_order_lock_release: Annotated[
        bool, Setting("Wake a pop in order when messages in flight become visible.")
    ] = True
    use_message_filter_for_notification: Annotated[
        bool, Setting("NOTIFICATION (200054) answers only for messages that pass its filter.")
    ] = True
    max_message_filter_num_for_notification: Annotated[
        int, Setting("Messages that it looks at per queue.", minimum=1)
    ] = 64

    # --- check-points ---

    revive_queue_num: Annotated[
        int, Setting("Queues of the POP revive topic.", minimum=1, maximum=_INT_MAX)
    ] = 8
    enable_pop_buffer_merge: Annotated[
        bool,
        Setting(
            "Keep check-points in memory, and write only those that are not acknowledged in time."
        ),
    ] = False
    pop_ck_stay_buffer_time: Annotated[
        int, milliseconds("How long a check-point stays in memory.")
    ] = 10_000
    pop_ck_stay_buffer_time_out: Annotated[
        int, milliseconds("Time before its end at which a check-point leaves memory.")
    ] = 3_000
    pop_ck_max_buffer_size: Annotated[
        int, Setting("Check-points in memory; further ones are written at once.", minimum=0)
    ] = 200_000
    pop_ck_offset_max_queue_size: Annotated[
        int, Setting("The same, per topic, group and queue.", minimum=0)
    ] = 20_000

    # --- revive ---

    revive_interval: Annotated[int, milliseconds("Time between two scans of a revive queue.")] = (
        1_000
    )
    skip_when_ck_re_put_reach_max_times: Annotated[
        bool,
        Setting(
            "Give up a message that could not be read after 17 attempts.",
            java="skipWhenCKRePutReachMaxTimes",
        ),
    ] = False
