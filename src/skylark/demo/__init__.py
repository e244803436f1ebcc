"""The application of ``skylark demo``: a shop that uses all features, with an audit.

==============  ====================================================================================
shop_producer   the order service: normal, ordered, delayed, transactional and broadcast messages
shop_consumers  the consumer groups: clustering, orderly, broadcast; one of them has a bug
totals          the function of the Spark pipeline in ``pipeline.yaml``: revenue per hour
lake_pipeline   runs that pipeline
scenario        starts ``skylark up`` and runs all steps in order
demo_audit      compares the figures of all parts
==============  ====================================================================================

``shop_producer``, ``shop_consumers`` and ``totals`` are examples to copy. An application imports
from ``skylark`` and ``skylark.aio`` what they import from modules.
"""
