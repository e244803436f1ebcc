"""The catalogue of requests: one row for every request code.

Dispatch reads the header types from it, access control the permissions that a caller needs, metrics
the names, and the reference pages all of it; a request without a handler is refused by its name.
The rows are defined by family in ``skylark.wire.rows``; here they are joined, and checked when the
module is imported: no code twice. Codes that Java defines, but that no client or server sends, have
an empty row.
"""

from __future__ import annotations

from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.rows import admin_rows, client_rows, cluster_rows, rare_rows
from skylark.wire.rows.catalogue_row import Row


def _build() -> dict[int, Row]:
    catalogue: dict[int, Row] = {}
    for row in (*client_rows.ROWS, *cluster_rows.ROWS, *admin_rows.ROWS, *rare_rows.ROWS):
        code = int(row.code)
        assert code not in catalogue, f"two rows for {row.name}"
        known_codes = set(row.response_codes + row.header_codes) <= set(ResponseCode)
        assert known_codes, f"{row.name} has a response code that does not exist"
        catalogue[code] = row
    for code in RequestCode:
        catalogue.setdefault(code, Row(code))
    return dict(sorted(catalogue.items()))


#: All rows by code, in the order of the codes.
CATALOGUE: dict[int, Row] = _build()


def lookup(code: int) -> Row | None:
    """The row of a request code, None for a code that no RocketMQ and no Skylark knows."""
    return CATALOGUE.get(code)


def name_of(code: int) -> str:
    """``SEND_MESSAGE_V2``, or ``UNKNOWN(9999)``: for logs, metrics and error texts."""
    row = CATALOGUE.get(code)
    return f"UNKNOWN({code})" if row is None else row.name
