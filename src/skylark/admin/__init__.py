"""Operations on a running cluster, as functions with typed results; they speak the protocol.

:class:`~skylark.admin.admin_client.Admin` puts the families together, and
:mod:`~skylark.admin.blocking_admin` is its twin without ``await``.

=================  ================================================================================
topics             make, list, describe, change, delete (topic_configs: one broker's part)
groups             settings of consumer groups (members: who is connected; progress: how far)
offsets            where queues end and groups stand (reset: plan and deed; queues: one by one)
stats              clusters, brokers, rates (queue_stats: the ends of queues)
messages           found by id, key, place, time (lookup, ranges, traces)
dlq                dead letters (redrive: a run over them; letters: one of them, sent once)
settings           of brokers and name servers, key-value table, write permission
explain            why a message was or was not consumed (explain_checks: each thing looked at)
apply              topics and groups as a file describes them: plan, deed, the way back
health             whether all servers answer
session, fan_out   who is asked, over which connections, and many of them at once
errors             what is not found, and what only some servers did
=================  ================================================================================
"""
