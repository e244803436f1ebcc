"""Consumers of every kind, and the logic that they share.

Decisions are separate from their execution. These modules see neither sockets nor the
event loop; times are arguments, and what is to be done comes back as instructions:

==================  ================================================================================
subscription        what a group wants of a topic
allocate            the queues of a topic shared among the members of a group
rebalance           which queues to give up, lock and take up, step by step
start_position      where a queue without a committed offset begins
process_queue       messages pulled and not yet consumed; when to pull more; what to commit
offset_store        committed offsets in memory, and in the file of broadcasting consumers
concurrent          what becomes of a batch that a handler has seen, in any order
orderly             the same where the order of a queue is kept
==================  ================================================================================

The push consumer (:mod:`~skylark.client.consumer.push.push_consumer`) carries them out in two
halves, see :mod:`~skylark.client.consumer.push.push_components`: ``member``, ``rebalancer``,
``offsets`` and ``reset`` on the control loop; ``pull_desk``, ``pull_loop``, ``concurrent_runner``,
``orderly_runner``, ``handlers`` and ``send_back`` on the loop of the application.
"""
