"""The blocking clients: the asyncio ones behind a door.

No second implementation: every method of a client here makes the same call of its asyncio twin on
the private loop of the process (:mod:`~skylark.client.blocking.event_loop_thread`), waits for it in
the calling thread, and returns or raises what came of it. So all of them may be called from any
number of threads at once.

Functions of the application never run on that loop: handlers, transaction checkers and listeners
are plain functions here and run in threads, selectors in the thread that sends. The exception are
hooks, which belong into the middle of a call: they must not block.

=============  =====================================================================================
portal         the private loop, and the way in
client         what the clients have in common: start, stop, ``with``
producer       with its transactions
gate           how many messages may be under way
push           the push consumer
lite_pull      the lite pull consumer
classic_pull   the classic pull consumer and its schedule
arrow          topics as Arrow
=============  =====================================================================================
"""
