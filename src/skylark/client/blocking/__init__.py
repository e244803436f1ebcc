"""The blocking clients: a facade over the asyncio ones, and no second implementation.

Every method of a client here calls the same method of an asyncio client on the private event loop
of the process (:mod:`~skylark.client.blocking.event_loop_thread`), waits for it in the calling
thread, and returns its result or raises its error. So all of them may be called from any number of
threads at once.

Functions of the application never run on that loop: handlers, transaction checkers and listeners
are plain functions here and run in threads, selectors in the thread that sends. The exception are
hooks, which are called in the middle of a send or pull: they must not block.

===================  ===============================================================================
event_loop_thread    the private loop, and how other threads call it
blocking_client      start, stop, ``with``; makes blocking methods of asyncio methods
blocking_producer    the producer and its transactions
blocking_consumers   the push, lite pull and classic pull consumers
blocking_functions   topics as Arrow, serving metrics
===================  ===============================================================================
"""
