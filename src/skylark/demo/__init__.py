"""``skylark demo``: a shop whose parts talk through RocketMQ, played in a minute, and audited.

==============  ====================================================================================
``shop``        the order service: normal, ordered, delayed, transactional and broadcast messages
``desks``       who consumes them: clustering, in order, broadcasting; one of them has a bug
``totals``      the function of the Spark pipeline in ``pipeline.yaml``: revenue by the hour
``lake``        runs that pipeline
``servers``     ``skylark up`` in a process of its own
``play``        the order of events
``audit``       the numbers that everybody wrote down, and whether they agree
==============  ====================================================================================

``shop``, ``desks`` and ``totals`` are written to be copied. An application imports from ``skylark``
and ``skylark.aio`` what they import from modules.
"""
