"""A user's session, word by word: every client command once, at one cluster, outputs checked.

The transcripts are read like a console block of a document (:mod:`tests.docs_runner`): below a
command stands what it prints, ``...`` for anything. ``[N]`` is the exit code where it is not 0, and
``ID`` in a command the id of the message that was sent last.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs_runner import Block, output_matches, parse_console
from tests.unit.cli.shell import Shell, client_commands
from tests.up import cluster

FIRST = """\
$ skylark ping
SERVER ... ROLE ... ADDRESS ... ANSWER MS  PROBLEM
... namesrv ...
broker-a ... master ...
$ skylark doctor --data .
CHECK      STATUS  FINDING ...
python     ok      Python ...
...
addresses  ok      broker-a answers at ...
...
$ skylark cluster list
CLUSTER         BROKER    ID  ROLE    ADDRESS ...
DefaultCluster  broker-a   0  MASTER  ...
$ skylark cluster status
CLUSTER ... LOG END ...
DefaultCluster  broker-a   0  MASTER  ...
$ skylark cluster config get fileReservedTime
SERVER    KEY               VALUE
broker-a  fileReservedTime  72
$ skylark cluster config set fileReservedTime=72 --yes
SERVER    KEY               OLD  NEW
broker-a  fileReservedTime  72   72
changed on broker-a
$ skylark apply site.yaml --plan
ACTION  KIND   NAME      BROKER    FIELD            OLD  NEW
create  topic  s-orders  broker-a  read_queues      -      1
create  topic  s-orders  broker-a  write_queues     -      1
create  group  s-bills   broker-a  retry_max_times  -      2
$ skylark apply site.yaml
...
the way back is in site.undo.yaml
2 of 2 changes applied
$ skylark topic create s-more --queues 2
TOPIC   BROKER    ADDRESS ... CREATED  QUEUE COUNT
s-more  broker-a  ... yes                2
$ skylark topic set s-more --perm r
...
s-more  broker-a  ... no                 2
$ skylark topic describe s-more
BROKER    CLUSTER         READ QUEUES  WRITE QUEUES  PERM  ORDER  ATTRIBUTES
broker-a  DefaultCluster            2             2  r     no     -

BROKER    QUEUE  MIN OFFSET  MAX OFFSET  MESSAGES  LAST STORED
broker-a      0           0           0         0  -
broker-a      1           0           0         0  -

messages  0
groups    -
$ skylark topic route s-more
BROKER    CLUSTER         ADDRESSES ... READ QUEUES  WRITE QUEUES  PERM
broker-a  DefaultCluster  0=127.0.0.1:...
$ skylark topic list
TOPIC     BROKERS   QUEUE COUNT  PERM
s-more    broker-a            2  r
s-orders  broker-a            1  rw
$ skylark produce s-orders one two --tag new --key k-1
MSG ID                            BROKER    QUEUE    OFFSET  STATUS
...  broker-a      0         0  SEND_OK
...  broker-a      0         1  SEND_OK
$ skylark consume s-orders --group s-bills --count 1 --no-follow
STORED                   QUEUE           OFFSET  TAG       KEYS      BODY
... broker-a:0           0  new       k-1       one
$ skylark group describe s-bills
TOPIC ... BROKER    QUEUE  BROKER OFFSET  CONSUMER OFFSET  LAG  IN FLIGHT  LAST CONSUMED
s-orders ... broker-a      0              2                1    1 ...
...
retry_max_times  2
may_consume      yes
$ skylark group list
GROUP    BROKERS   MEMBERS  MODEL  LAG
s-bills  broker-a        0  -        1
"""
FOUND = """\
$ skylark message get ID
msg_id ...
...
body ... one
...
$ skylark message query s-orders --from 1h
MSG ID ...
... one
... two
$ skylark message explain ID --group s-bills
STATUS   CHECK         FINDING
ok       message       it is in s-orders, queue broker-a:0 at offset 0, since ..., tag new
...
ok       offset        committed 1: the group is past offset 0
...

?        consumed      ... by s-bills: passed: ...
"""
LAST = """\
$ skylark dlq list
GROUP    LETTERS  PENDING  LAST DIED
s-bills        1        1  20...
$ skylark dlq show s-bills
MSG ID ... DEAD LETTER ID ... TOPIC ...
... s-orders  new  k-1 ... one
$ skylark dlq redrive s-bills --dry-run
MSG ID ... OUTCOME ...
... s-orders  planned ...

would be sent  1
sent before    0
left out       0
failed         0
$ skylark dlq redrive s-bills --yes
...
sent         1
...
$ skylark group reset-offset s-bills s-orders --to earliest --dry-run
TOPIC     BROKER    QUEUE  COMMITTED  NEW OFFSET  MIN  MAX  STEP
s-orders  broker-a      0          1           0    0    3    -1
$ skylark group skip s-bills s-orders --yes
...
s-orders  broker-a      0           1       3
$ skylark consume s-orders --group s-bills --no-follow
$ skylark group delete s-bills --yes
GROUP    BROKER    DELETED
s-bills  broker-a  yes
$ skylark group describe s-bills
Error: there is no group s-bills: `skylark group list` shows all
[4]
$ skylark topic delete s-more --yes
TOPIC   BROKER    DELETED
s-more  broker-a  yes
$ skylark topic describe s-more
Error: there is no topic s-more...
[4]
$ skylark apply site.undo.yaml --yes
ACTION  KIND   NAME      BROKER  FIELD  OLD  NEW
delete  topic  s-orders  -       -      -    -
the way back is in site.undo.undo.yaml
1 of 1 changes applied
$ skylark ping -n 127.0.0.1:1
SERVER ...
127.0.0.1:1  namesrv  127.0.0.1:1  - ... nothing listens there...
[3]
$ skylark topic create
Usage: ...
...
Error: Missing argument 'TOPIC'.
[2]
$ skylark completion bash
_skylark_completion() {
...
"""
SITE = """\
topics:
  - {name: s-orders, queues: 1}
groups:
  - {name: s-bills, retry_max_times: 2}
"""


class Session:
    """Reads transcripts aloud."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self.run_commands: list[list[str]] = []
        self.message_id = ""

    def play(self, transcript: str) -> None:
        for command in parse_console(Block(0, "console", tuple(transcript.splitlines()))):
            expected, code = command.expected, 0
            if expected and (marked := re.fullmatch(r"\[(\d+)\]", expected[-1])):
                expected, code = expected[:-1], int(marked[1])
            words = [
                self.message_id if word == "ID" else word for word in shlex.split(command.text)[1:]
            ]
            output = self._shell.run(*words, code=code).output
            assert output_matches(expected, output), f"$ {command.text}\n{output}"
            self.run_commands.append(words)
            if words[0] == "produce":
                self.message_id = re.findall(r"\b[0-9A-F]{32}\b", output)[0]


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Shell]:
    """At a cluster of its own: what is listed is what the session made."""
    with cluster(tmp_path) as namesrv:
        yield Shell(namesrv)


def test_a_session(alone: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("skylark.cli.doctor.DISK_FULL_RATIO", 2.0)  # whatever this machine has
    monkeypatch.setattr("skylark.cli.doctor.DISK_FREE_MIN", 0)
    monkeypatch.setattr("skylark.cli.doctor.FILE_LIMIT_MIN", 0)
    Path("site.yaml").write_text(SITE)
    session = Session(alone)
    session.play(FIRST)
    index = ("message", "query", "s-orders", "--key", "k-1")
    alone.until(lambda: len(alone.json(*index)) == 2, "not indexed")
    session.play(FOUND)
    alone.bury("s-orders", "s-bills", session.message_id)
    session.play(LAST)
    done = {
        name
        for name in client_commands()
        for words in session.run_commands
        if words[: len(name.split())] == name.split()
    }
    assert done == client_commands().keys()
