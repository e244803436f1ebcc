"""The blocking clients: a facade over the asyncio clients.

Every method calls the same method of an asyncio client on the private event loop of the process
(:mod:`~skylark.client.blocking.event_loop_thread`), waits for it in the calling thread, and returns
its result or raises its error. So any number of threads may call them at once.

Functions of the application do not run on that loop: handlers, transaction checkers and listeners
are plain functions and run in threads, selectors in the thread that sends. Only hooks are called on
it, during a send or pull: they must not block.

===================  ===============================================================================
event_loop_thread    the private loop, and calls to it from other threads
caller_errors        cuts our frames from errors about servers
blocking_client      start, stop, ``with``; makes blocking methods from asyncio methods
blocking_producer    the producer and its transactions
blocking_consumers   the push, lite pull and classic pull consumers
blocking_functions   topics as Arrow, the metrics endpoint
===================  ===============================================================================
"""
