"""Pipelines declared in a file: read topics, transform by SQL or Python, write anywhere.

===============  ==================================================================================
the file         document; marked_yaml (lines and columns of mistakes), environment (``${NAME}``)
without Spark    checkpoints (folders of a pipeline, and what is in them), starting (where it would
                 begin, how far it is behind), status, resetting
with Spark       frames (from source to sink, analysed and not run), code (functions of the user),
                 reach (brokers seen from executors), plan, running; sessions, sentences
===============  ==================================================================================

The command is ``skylark pipeline``.
"""
