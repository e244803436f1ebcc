"""Operations on a running cluster, as functions with typed results.

:class:`~skylark.admin.admin_client.Admin` is the entry point for asyncio,
:mod:`~skylark.admin.blocking_admin` the same without ``await``.

=================  ================================================================================
topic_operations   topics and their configuration (topic_queues: queues, offsets, times)
group_operations   consumer groups (connected_clients: members; consumer_progress: lag)
offset_operations  offsets of queues and groups (offset_reset_plan: resets)
cluster_stats      clusters, brokers, rates, replication
message_operations messages by id, key, offset, time (message_lookup, queue_merge, trace_query)
dlq                dead letters (redrive: a run; redrive_sender: one message)
server_settings    settings of brokers and name servers, key-value table, write permission
explain            why a message was or was not consumed (explain_checks: the single checks)
apply              topics and groups from a file: plan, changes, undo
health             whether all servers respond
admin_session      connections, requests and names (fan_out: one request to many servers)
errors             not found, and partial failures
=================  ================================================================================
"""
