"""The catalogue of requests: one row for every request code.

Dispatch reads the header types from it, access control the permissions that a caller needs, metrics
the names, and the reference pages all of it; a request without a handler is refused by its name.
The rows are defined by family in ``skylark.wire.rows``; here they are joined with the types of
their JSON bodies (``skylark.wire.bodies.body_types``) and checked against each other when the
module is imported: no code twice, none missing, a body type exactly where the row has a JSON body.
"""

from __future__ import annotations

import msgspec

from skylark.wire.bodies.body_types import REQUEST_BODIES, RESPONSE_BODIES
from skylark.wire.codes import RequestCode, ResponseCode
from skylark.wire.rows import admin_rows as administration
from skylark.wire.rows import client_rows as clients
from skylark.wire.rows import cluster_rows as cluster
from skylark.wire.rows import rare_rows as rare
from skylark.wire.rows.catalogue_row import BodyKind, Row


def _build() -> dict[int, Row]:
    catalogue: dict[int, Row] = {}
    for row in (*clients.ROWS, *cluster.ROWS, *administration.ROWS, *rare.ROWS):
        code = int(row.code)
        assert code not in catalogue, f"two rows for {row.name}"
        has_json = (row.request_body is BodyKind.JSON, row.response_body is BodyKind.JSON)
        assert has_json == (code in REQUEST_BODIES, code in RESPONSE_BODIES), row.name
        known_codes = set(row.response_codes + row.header_codes) <= set(ResponseCode)
        assert known_codes, f"{row.name} answers with a code that does not exist"
        catalogue[code] = msgspec.structs.replace(
            row,
            request_body_type=REQUEST_BODIES.get(code),
            response_body_type=RESPONSE_BODIES.get(code),
        )
    missing = [code.name for code in RequestCode if code not in catalogue]
    assert not missing, f"codes without a row: {missing}"
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
