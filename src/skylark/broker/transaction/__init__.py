"""Transactions: half messages, decisions about them, and check-backs to producers.

::

    send with TRAN_MSG=true -> half queue --(37 commit)--> final message + op message
                                          --(37 rollback)------------> op message
                                          --(no decision)--> check-back (39), repeated,
                                                             then TRANS_CHECK_MAX_TIME_TOPIC

========================  =========================================================================
``half_message``          the half message, and the copies and final message made from it
``recent_halves``         cache of half messages for commits that follow soon
``end_transaction``       commits and rolls back (37): the step of the put pipeline
``half_batches``          many half messages or decisions in one request (9002, 9003)
``commit_runs``           commits of neighbours in the log, in one append
``handlers``              remoting requests (37, 323, 9002, 9003)
``decisions``             table of outcomes: applies each decision once
``op_messages``           op messages, which record decisions in the log
``transaction_recovery``  reads the decisions back at start
``evicted``               looks up outcomes that are no longer in memory
``check_back``            rounds of check-backs for undecided half messages
``check_policy``          when to check back, wait or give up
``transaction_counts``    numbers for metrics and the file ``transactionMetrics``
``transaction_service``   shared state, op messages, start and stop
========================  =========================================================================
"""
