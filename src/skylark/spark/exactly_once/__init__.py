"""Exactly-once writes: commit protocol, transaction log and half messages."""

from typing import TYPE_CHECKING

if not TYPE_CHECKING:
    from skylark.spark.moved_modules import lazy_names

    __getattr__ = lazy_names(__name__)  # this package was a module once
