"""``skylark produce``: send messages from the command line, or one per line of the input.

Each message is answered by a line on stdout as soon as it is stored: id, broker, queue, offset and
status, in columns or, with ``--output json``, as one JSON object per line. The input is sent in the
pieces in which it arrives, so a person, a pipe that never ends and a large file are served alike,
and memory stays small. With ``--shard`` messages are sent one after the other, because they all go
to one queue and keep their order there; with ``--batch`` so many travel in one request, and are
stored together or not at all; otherwise those of a piece are under way together. ``--rate`` makes
the pieces small and spaces them.

A message that fails does not undo the others: the rest of its piece is reported, then the command
ends with the first error. What went wrong between us and the cluster is told with what to do about
it (:func:`skylark.cli.exit_codes.explained`).
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import click

from skylark.cli.cli_context import CliContext
from skylark.cli.command_helpers import complete_topics, duration_s, key_value
from skylark.cli.exit_codes import explained
from skylark.cli.name_server_option import client_options, namesrv_option

if TYPE_CHECKING:
    from skylark.client.core.client_message import Message, SendResult
    from skylark.client.core.client_options import ClientOptions
    from skylark.client.producer.producer import Producer
    from skylark.client.producer.send_options import SendKeywords

GROUP = "skylark-produce"
STDIN = "-"
#: Messages under way together.
PIECE_COUNT_MAX = 1_000
READ_SIZE = 1024 * 1024
#: A line that is longer is no message: bodies end at 4 MiB, and base64 needs a third more.
LINE_SIZE_MAX = 8 * 1024 * 1024
#: With --rate, so many pieces a second, if there are messages enough.
PIECES_PER_SECOND = 10
#: From so many messages on a person who cannot see the results is shown progress.
LONG_COUNT = 1_000


@dataclass
class JsonLine:
    """What a line of ``--jsonl`` may hold; one of the two bodies it must."""

    body: str | None = None
    body_base64: bytes | None = None
    tag: str | None = None
    keys: list[str] | str = ""
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Common:
    """What the options say about every message."""

    topic: str
    tag: str | None
    keys: tuple[str, ...]
    properties: dict[str, str]


@click.command(
    "produce",
    epilog="Examples: skylark produce orders hello --tag new; seq 9 | skylark produce orders -",
)
@click.argument("topic", shell_complete=complete_topics)
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@namesrv_option
@click.option("--tag", help="Tag of the messages, which consumers can filter by.")
@click.option("--key", "keys", multiple=True, help="A key to find them by; may be repeated.")
@click.option(
    "--property",
    "properties",
    metavar="KEY=VALUE",
    multiple=True,
    help="A property; may be repeated.",
)
@click.option("--shard", metavar="KEY", help="Equal keys: the same queue, and in order.")
@click.option("--delay", metavar="TIME", help="Deliver so much later: 500ms, 10s, 5m, 2h, 1d.")
@click.option(
    "--count",
    "repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Send each message so many times.",
)
@click.option(
    "--jsonl",
    is_flag=True,
    help="Lines are JSON objects: body or body_base64, and tag, keys, properties.",
)
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Take the lines of this file instead of the input.",
)
@click.option(
    "--batch", "batch_size", type=click.IntRange(1, 1_000), help="So many in one request; no delay."
)
@click.option(
    "--rate", type=click.FloatRange(min=0, min_open=True), help="At most so many messages a second."
)
@click.pass_obj
def command(
    context: CliContext,
    topic: str,
    bodies: tuple[str, ...],
    namesrv: str | None,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    shard: str | None,
    delay: str | None,
    repeats: int,
    jsonl: bool,
    path: Path | None,
    batch_size: int | None,
    rate: float | None,
) -> None:
    """Send messages to a topic.

    Each BODY is a message. Without one, or with -, each line of the input or of --file is; empty
    lines are passed over.
    """
    import asyncio

    from skylark.client.producer.send_options import SendKeywords

    reads_lines = bodies in ((), (STDIN,))
    if (jsonl or path is not None) and not reads_lines:
        option = "--jsonl reads the input" if jsonl else "--file has the messages"
        raise click.UsageError(f"{option}: leave out BODY")
    if batch_size is not None and (delay, shard) != (None, None):
        raise click.UsageError("--batch goes to one queue at once: leave out --delay and --shard")
    common = Common(topic, tag, keys, dict(key_value(text, "--property") for text in properties))
    sizes = Sizes(repeats, _piece_size(batch_size, rate))
    make = _json_message if jsonl else _plain_message
    pieces = _piped(common, make, path, sizes) if reads_lines else _given(common, bodies, sizes)
    how = SendKeywords()
    if shard is not None:
        how["shard"] = shard
    if delay is not None:
        how["delay"] = duration_s(delay, "--delay")
    context.configure_logging("error")  # what matters of the client's warnings is an error here
    if reads_lines and path is None and sys.stdin.isatty():
        context.output.note("Each line is a message; end with Ctrl-D.")
    total = None if reads_lines else len(bodies) * repeats
    # A bar and results on the same terminal would write over each other.
    watched = not sys.stdout.isatty() and (total is None or total >= LONG_COUNT)
    with (
        explained(topic),
        context.output.progress(f"sending to {topic}", total) if watched else nullcontext() as step,
    ):
        sending = _Sending(context.output.is_json, how, step or (lambda count: None))
        if batch_size is not None:
            sending.batch_size = batch_size
        sending.rate = rate
        asyncio.run(sending.run(client_options(namesrv), pieces))


def _piece_size(batch_size: int | None, rate: float | None) -> int:
    """Messages that are under way together: whole batches, and with a rate only a few."""
    size = PIECE_COUNT_MAX if rate is None else max(1, int(rate / PIECES_PER_SECOND))
    if batch_size is None:
        return min(size, PIECE_COUNT_MAX)
    return max(1, min(size, PIECE_COUNT_MAX) // batch_size) * batch_size


class _Sending:
    """Sends pieces of the input and prints what became of each message."""

    def __init__(self, is_json: bool, how: SendKeywords, step: Callable[[int], None]) -> None:
        self.batch_size = 0  # 0: each by itself
        self.rate: float | None = None
        self._is_json = is_json
        self._how = how
        self._step = step
        self._has_heading = False

    async def run(self, options: ClientOptions, pieces: AsyncIterator[list[Message]]) -> None:
        from skylark.client.producer.producer import Producer
        from skylark.core.clock import LoopClock

        clock = LoopClock()
        due = clock.monotonic()
        async with Producer(GROUP, options) as producer:
            async for piece in pieces:
                if self.rate is not None:
                    await clock.sleep(due - clock.monotonic())
                    due = max(due, clock.monotonic()) + len(piece) / self.rate
                error = await self._send(producer, piece)
                self._step(len(piece))
                sys.stdout.flush()
                if error is not None:
                    raise error

    async def _send(self, producer: Producer, piece: list[Message]) -> BaseException | None:
        """Send a piece and show the results, in its order; the first error."""
        import asyncio

        if "shard" in self._how:
            for message in piece:
                self._show(await producer.send(message, **self._how))
            return None
        if self.batch_size:
            for start in range(0, len(piece), self.batch_size):
                batch = piece[start : start + self.batch_size]
                for stored in await producer.send_batch(batch):
                    self._show(stored)
            return None
        sends = (producer.send(message, **self._how) for message in piece)
        first_error: BaseException | None = None
        for result in await asyncio.gather(*sends, return_exceptions=True):
            if not isinstance(result, BaseException):
                self._show(result)
            elif first_error is None:
                first_error = result
        return first_error

    def _show(self, result: SendResult) -> None:
        import json

        queue, status = result.queue, result.status.value
        if self._is_json:
            record = {
                "msg_id": result.msg_id,
                "broker": queue.broker_name,
                "queue": queue.queue_id,
                "offset": result.queue_offset,
                "status": status,
            }
            sys.stdout.write(f"{json.dumps(record)}\n")
            return
        if not self._has_heading:
            self._has_heading = True
            broker = "BROKER".ljust(len(queue.broker_name))
            sys.stdout.write(f"{'MSG ID':<32}  {broker}  QUEUE    OFFSET  STATUS\n")
        sys.stdout.write(
            f"{result.msg_id:<32}  {queue.broker_name:<6}  {queue.queue_id:>5}"
            f"  {result.queue_offset:>8}  {status}\n"
        )


# ---- what to send --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sizes:
    """How often each message is sent, and how many are under way together."""

    repeats: int
    piece_size: int


async def _given(
    common: Common, bodies: Iterable[str], sizes: Sizes
) -> AsyncIterator[list[Message]]:
    """Messages from the command line; bytes that are no UTF-8 stay what they were."""
    messages = [_plain_message(common, os.fsencode(body), 0) for body in bodies]
    for piece in _pieces(messages, sizes):
        yield piece


async def _piped(
    common: Common,
    make: Callable[[Common, bytes, int], Message],
    path: Path | None,
    sizes: Sizes,
) -> AsyncIterator[list[Message]]:
    """Messages from the lines of a file or the input, in the pieces in which they arrive."""
    number = 0
    with nullcontext(sys.stdin) if path is None else path.open("rb") as source:
        async for lines in _lines(source.fileno()):
            messages = []
            for line in lines:
                number += 1
                if line:
                    messages.append(make(common, line, number))
            for piece in _pieces(messages, sizes):
                yield piece


def _pieces(messages: list[Message], sizes: Sizes) -> Iterator[list[Message]]:
    from itertools import chain, islice, repeat

    repeated = chain.from_iterable(repeat(message, sizes.repeats) for message in messages)
    while piece := list(islice(repeated, sizes.piece_size)):
        yield piece


async def _lines(descriptor: int) -> AsyncIterator[list[bytes]]:
    """Complete lines of a file, as many as there are each time; the last may lack its end.

    Nothing waits in ``read``, where the interrupt key would not be heard.
    """
    rest = b""
    while True:
        await _readable(descriptor)
        data = os.read(descriptor, READ_SIZE)
        if not data:
            break
        *lines, rest = (rest + data).split(b"\n")
        if len(rest) > LINE_SIZE_MAX:
            raise click.ClickException(
                f"a line of the input is longer than {LINE_SIZE_MAX} bytes: messages are smaller"
            )
        yield lines
    yield [rest]


async def _readable(descriptor: int) -> None:
    import asyncio

    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return  # it never makes one wait, and macOS would wait for its growth
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(descriptor, ready.set)
    except OSError:  # /dev/null, say
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def _plain_message(common: Common, body: bytes, number: int) -> Message:
    from skylark.client.core.client_message import Message

    del number
    return Message(
        common.topic, body, tag=common.tag, keys=common.keys, properties=common.properties
    )


def _json_message(common: Common, line: bytes, number: int) -> Message:
    """The message of a JSON line; what the line does not say the options do."""
    import json
    from dataclasses import fields

    import msgspec

    from skylark.client.core.client_message import Message

    try:
        found = json.loads(line)
        said = msgspec.convert(found, JsonLine)
    except (ValueError, RecursionError, msgspec.ValidationError) as error:
        raise click.ClickException(f"line {number} of the input: {error}") from error
    known = [each.name for each in fields(JsonLine)]
    if unknown := sorted(found.keys() - set(known)):
        raise click.ClickException(
            f"line {number} of the input: {unknown[0]!r} is none of {', '.join(known)}"
        )
    if (said.body is None) == (said.body_base64 is None):
        raise click.ClickException(f"line {number} of the input: give body or body_base64")
    body = said.body_base64
    if said.body is not None:
        body = said.body.encode("utf-8", "surrogatepass")
    assert body is not None
    keys = said.keys.split() if isinstance(said.keys, str) else said.keys
    return Message(
        common.topic,
        body,
        tag=said.tag if said.tag is not None else common.tag,
        keys=keys or common.keys,
        properties={**common.properties, **said.properties},
    )
