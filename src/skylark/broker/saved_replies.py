"""Answers that acknowledge a change of a table, given when the disk has it."""

from __future__ import annotations

from typing import Any

from skylark.broker.table_saver import SavedTable
from skylark.core.errors import BrokerError, StoreError


async def until_saved(*tables: SavedTable[Any]) -> None:
    """Hold an answer until the disk has what it acknowledges; raises BrokerError if it cannot."""
    try:
        for table in tables:
            await table.written()
    except StoreError as error:
        raise not_saved(error) from error


def not_saved(error: StoreError) -> BrokerError:
    """The answer to a change that was made in memory only; the cause is logged by whoever saves."""
    return BrokerError(f"the change holds until restart, it could not be saved: {error}")
