"""Output formats of ``skylark consume``: one line per message.

========  ========================================================================================
line      columns; control characters are escaped, a body that is not UTF-8 is base64
json      an object; the body is text in ``body`` or, if it is not UTF-8, in ``body_base64``
body      the bytes of the body and a line feed, which ``skylark produce`` can read
========  ========================================================================================
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from skylark.cli.output import Output, cell_text

if TYPE_CHECKING:
    from skylark.client.core.client_message import MessageExt

Form: TypeAlias = Literal["line", "json", "body"]
FORMS: tuple[Form, ...] = ("line", "json", "body")


class Printer:
    """Prints messages, up to a maximum count."""

    def __init__(
        self, output: Output, topic: str, count: int | None, form: Form | None = None
    ) -> None:
        self.output = output
        self._form: Form = form or ("json" if output.is_json else "line")
        self._topic = topic
        self._left = count
        self._has_heading = False

    @property
    def is_done(self) -> bool:
        """Whether the maximum count has been printed."""
        return self._left == 0

    def at_most(self, count: int) -> int:
        """How many messages are still to be printed, up to ``count``."""
        return count if self._left is None else min(count, self._left)

    def show(self, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        """Print messages up to the maximum count; returns the printed ones."""
        shown = messages if self._left is None else messages[: self._left]
        if self._form == "body":
            for message in shown:
                sys.stdout.buffer.write(message.body + b"\n")
        else:
            write = self._json if self._form == "json" else self._line
            for message in shown:
                sys.stdout.write(write(message))
        if self._left is not None:
            self._left -= len(shown)
        return shown

    def flush(self) -> None:
        """Flush stdout."""
        sys.stdout.flush()

    def _json(self, message: MessageExt) -> str:
        import base64
        import json

        record: dict[str, object] = {
            "topic": self._topic,
            "broker": message.broker_name,
            "queue": message.queue_id,
            "offset": message.queue_offset,
            "msg_id": message.msg_id,
            "tag": message.tag,
            "keys": message.keys,
        }
        try:
            record["body"] = message.body.decode()
        except UnicodeDecodeError:
            record["body_base64"] = base64.b64encode(message.body).decode()
        record["properties"] = dict(message.properties)
        record["born_time"] = message.born_time.isoformat(timespec="milliseconds")
        record["store_time"] = message.store_time.isoformat(timespec="milliseconds")
        record["reconsume_times"] = message.reconsume_times
        text = json.dumps(record, ensure_ascii=False)
        return f"{text.encode('utf-8', 'backslashreplace').decode()}\n"

    def _line(self, message: MessageExt) -> str:
        import base64

        heading = ""
        if not self._has_heading:
            self._has_heading = True
            heading = f"{'STORED':<23}  {'QUEUE':<12}    OFFSET  {'TAG':<8}  {'KEYS':<8}  BODY\n"
        try:
            body = cell_text(message.body.decode())
        except UnicodeDecodeError:
            body = f"base64:{base64.b64encode(message.body).decode()}"
        stored = message.store_time.astimezone().replace(tzinfo=None)
        queue = f"{message.broker_name}:{message.queue_id}"
        return (
            f"{heading}{stored.isoformat(' ', 'milliseconds')}  {cell_text(queue):<12}"
            f"  {message.queue_offset:>8}  {cell_text(message.tag):<8}"
            f"  {cell_text(message.keys):<8}  {body}\n"
        )
