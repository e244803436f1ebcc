"""Spark sessions of a pipeline file: one for all of its pipelines, with a child session for each.

``spark.master`` of a file is any master of Spark: ``local[*]``, ``spark://host:7077``, ``yarn``,
``k8s://...``, or ``sc://host:15002`` for a Spark Connect server. Each child session has its own
views, so that every pipeline can have its rows as the view ``input``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from pyspark.sql import SparkSession

from skylark.spark.error_translation import translate_pipeline_errors
from skylark.spark.pipelines.pipeline_file import Pipeline, PipelineFile
from skylark.spark.pipelines.pipeline_start import name_in_errors
from skylark.spark.session import make_session, silence_error_loggers

#: For annotations in modules that must not import pyspark.
Session: TypeAlias = SparkSession

_CONNECT: Final = "sc://"


@contextmanager
def pipeline_errors(pipeline: Pipeline) -> Iterator[None]:
    """Translate errors of Spark, and name the pipeline in them."""
    with name_in_errors(pipeline), translate_pipeline_errors():
        yield


@contextmanager
def open_session(document: PipelineFile, *, quiet: bool = True) -> Iterator[SparkSession]:
    """A session for a file; raises ConfigError.

    An active session is used and not stopped at the end. ``quiet`` turns the log of the JVM off:
    the error is reported in one sentence, without stack traces.
    """
    active = SparkSession.getActiveSession()
    if quiet:
        silence_error_loggers()
    with translate_pipeline_errors():
        spark = _make(document, quiet=quiet and active is None)
    try:
        yield spark
    finally:
        if active is None:
            spark.stop()


def _make(document: PipelineFile, *, quiet: bool) -> SparkSession:
    if not document.master.startswith(_CONNECT):
        app_name = f"skylark pipeline {document.name}"
        return make_session(document.master, app_name=app_name, conf=document.conf, quiet=quiet)
    builder = SparkSession.builder.remote(document.master)
    for name, value in document.conf.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def child_session(spark: SparkSession, document: PipelineFile) -> SparkSession:
    """A child session for a pipeline, with the settings of the file."""
    child = spark.newSession()
    for name in ("spark.sql.session.timeZone", "spark.sql.shuffle.partitions"):
        child.conf.set(name, str(spark.conf.get(name)))
    for name, value in document.conf.items():
        if child.conf.isModifiable(name):
            child.conf.set(name, value)
    return child
