"""Output of stored messages: as rows of a list, or with all fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from skylark.cli.command_helpers import format_time, to_plain
from skylark.cli.output import Output

if TYPE_CHECKING:
    from skylark.admin.trace_query import MessageTrace
    from skylark.client.core.client_message import MessageExt

QUERY_COLUMNS = ("msg_id", "broker", "queue", "offset", "stored", "tag", "keys", "body")
#: Maximum characters of a body in a list.
BODY_SHOWN_MAX = 60


def query_row(message: MessageExt) -> dict[str, object]:
    """The row of a message in a list."""
    return {
        "msg_id": message.msg_id,
        "broker": message.broker_name,
        "queue": message.queue_id,
        "offset": message.queue_offset,
        "stored": format_time(message.record.store_timestamp),
        "tag": message.tag,
        "keys": message.keys,
        "body": short_body(message),
    }


def short_body(message: MessageExt) -> str:
    """The beginning of a body that is text, otherwise its size."""
    from skylark.admin.message_operations import view

    found = view(message, BODY_SHOWN_MAX * 4)
    if found.is_base64:
        return f"({found.body_size} bytes)"
    is_cut = found.is_cut or len(found.body) > BODY_SHOWN_MAX
    return found.body[:BODY_SHOWN_MAX] + ("..." if is_cut else "")


def show_message(
    output: Output, messages: Sequence[tuple[MessageExt, MessageTrace | None]]
) -> None:
    """Print messages with all fields, each with its trace if one is given."""
    import msgspec

    from skylark.admin.message_operations import view

    documents = []
    for message, trace in messages:
        document: dict[str, object] = msgspec.structs.asdict(view(message))
        for name in ("born_time", "store_time"):
            time_ms = document.pop(f"{name}_ms")
            assert isinstance(time_ms, int)
            document[name] = format_time(time_ms)
        if trace is not None:
            document["trace"] = to_plain(trace)
        documents.append(document)
    if output.is_json:
        columns = dict.fromkeys(name for document in documents for name in document)
        output.rows(tuple(columns), documents)  # some may have no trace
        return
    for number, document in enumerate(documents):
        if number:
            output.gap()
        message, trace = messages[number]
        shown = {
            key: value for key, value in document.items() if key not in ("properties", "trace")
        }
        for flag in ("flag", "is_base64", "is_cut"):
            if not shown[flag]:
                del shown[flag]
        properties = {f"property {key}": value for key, value in message.properties.items()}
        output.record({**shown, **properties})
        if trace is not None:
            output.gap()
            _show_trace(output, trace)


def _show_trace(output: Output, trace: MessageTrace) -> None:
    rows: list[dict[str, object]] = [
        {
            "event": "sent",
            "time": format_time(sent.time_ms),
            "group": sent.group,
            "took_ms": sent.cost_ms,
            "success": sent.success,
        }
        for sent in trace.sends
    ]
    rows += [
        {
            "event": f"transaction {end.state}",
            "time": format_time(end.time_ms),
            "group": end.group,
            "took_ms": None,
            "success": True,
        }
        for end in trace.transactions
    ]
    rows += [
        {
            "event": "delivered",
            "time": format_time(each.time_ms),
            "group": each.group,
            "took_ms": None if each.after is None else each.after.cost_ms,
            "success": None if each.after is None else each.after.success,
        }
        for each in trace.deliveries
    ]
    output.rows(("event", "time", "group", "took_ms", "success"), rows)
