"""Pipelines declared in a YAML file: read topics, transform them by SQL or Python, write anywhere.

=============  ====================================================================================
the file       ``pipeline_file`` (its format, line and column of mistakes, ``${NAME}``)
without Spark  ``checkpoint_folders`` (folders of a pipeline and their content), ``pipeline_start``
               (where a run would begin), ``pipeline_status``, ``pipeline_reset``, ``last_run``
               (the state that a run leaves for the status)
with Spark     ``query_builder`` (from source to sink, analysed and not run), ``pipeline_plan``
               (also whether executors reach the brokers), ``pipeline_runner``
=============  ====================================================================================

The command is ``skylark pipeline``.
"""
