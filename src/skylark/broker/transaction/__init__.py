"""Transactions: half messages, decisions about them, and questions to producers.

::

    send with TRAN_MSG=true -> half queue --(37 commit)--> final message + op message
                                          --(37 rollback)------------> op message
                                          --(nobody decides)--> asked about (39), again and again,
                                                                then TRANS_CHECK_MAX_TIME_TOPIC

``half`` what a half message is and becomes; ``resolved`` which are decided, ``op_batches`` how that
is noted in the log, ``recovery`` how it is read back; ``check_rules`` what to do with an undecided
one, ``check_rounds`` doing it; ``counts`` numbers; ``service`` decisions and life,
``plain_halves`` the short way of nearly all, ``plain_commits`` one for many at a time.
"""
