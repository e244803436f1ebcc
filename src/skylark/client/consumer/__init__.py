"""Consumers of every kind, and the logic that they share.

Decisions are separate from their execution. These modules are pure: they use neither sockets nor
the event loop, times are arguments, and the actions are returned as instructions:

======================  ============================================================================
subscription            which messages of a topic a group consumes
allocation              how the members of a group share the queues of a topic
rebalance               which queues to give up, lock and take up, step by step
start_position          where a queue without a committed offset starts
process_queue           messages pulled and not yet consumed; when to pull; what to commit
offset_table            committed offsets in memory, and the offset file of broadcasting consumers
concurrent_settlement   what becomes of a batch after its handler, in any order
orderly_settlement      the same, in the order of the queue
======================  ============================================================================

The push consumer (:mod:`~skylark.client.consumer.push.push_consumer`) executes them in two halves,
see :mod:`~skylark.client.consumer.push.push_components`: ``push_member``, ``rebalance_executor``
and ``offset_persistence`` on the control loop; ``pull_service``, ``pull_loop``,
``concurrent_runner``, ``orderly_runner``, ``message_handlers`` and ``consumer_send_back`` on the
loop of the application.
"""
