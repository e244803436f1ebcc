"""A source that is registered with a session by the program."""

from __future__ import annotations

from pyspark.sql import SparkSession

from skylark.spark.session import command_session, register


def test_queries_side_by_side_may_start_processes_while_others_send_tasks(
    spark: SparkSession,
) -> None:
    """Spark writes the variables of a process into a map that it also serialises for tasks."""
    session = spark.newSession()
    environment = spark.sparkContext.environment
    register(session)
    manager = session._jsparkSession.sessionState().dataSourceManager()
    variables = manager.lookupDataSource("rocketmq").dataSourceCls().envVars()
    assert variables.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
    assert dict(variables) == environment
    assert spark.sparkContext.environment is environment


def test_commands_do_not_rely_on_the_search_of_spark(spark: SparkSession) -> None:
    """It fails where a Python worker starts late, or where another package cannot be imported."""
    with command_session(lambda **_: spark.newSession(), quiet=False) as session:
        manager = session._jsparkSession.sessionState().dataSourceManager()
        variables = manager.lookupDataSource("rocketmq").dataSourceCls().envVars()
        assert variables.getClass().getName() == "java.util.concurrent.ConcurrentHashMap"
