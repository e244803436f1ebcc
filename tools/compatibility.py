"""Writes ``docs/compatibility.md``: what of RocketMQ works here, is refused, or comes later.

    python -m tools.compatibility           # from the root of the repository
    python -m tools.compatibility --check   # fails if the file is not what would be written

"Works" is said only of what a test names:

=========  =======================================================================================
replay     a recorded request of this code is sent again and answered as recorded: to the name
           server (``tests/golden/test_namesrv_replay.py``) or to the broker
           (``tests/golden/replay``)
spec       a test marked with an item of the specification of the servers declares that it shows
           the code served (``@pytest.mark.serves``)
interop    a test with a real client or tool declares the command or code with ``shows``
           (``tests/interop/shown.py``), or a row of the table of scenarios stands for it
=========  =======================================================================================

Marks and declarations are read from the syntax trees of the tests, so nothing of them is run. That
the servers handle exactly the codes of the catalogue that they should, or refuse them by name, is
tested elsewhere; what is refused and why is taken from the broker's own table.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from skylark.broker.admin.refused_requests import REFUSED
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode
from skylark.wire.rows.catalogue_row import Row
from tests.golden.replay.recording import RUNS, Scenario
from tests.interop import mqadmin_commands
from tests.interop.broker_scenarios.table import CLIENTS, SCENARIOS
from tests.interop.broker_scenarios.table import Scenario as ClientScenario
from tests.support.long_runs import part_of, parts, read_ledger

ROOT: Final = Path(__file__).parent.parent
DOCUMENT: Final = ROOT / "docs" / "compatibility.md"
FRAMES: Final = ROOT / "tests" / "golden" / "data" / "frames"

WORKS, REFUSAL, LATER = "works", "refused", "later"

#: Of the specification: what is asked of servers.
CHAPTERS: Final = ("remoting.", "broker.", "store.")

#: Codes that a scenario of the table cannot do without.
SCENARIO_CODES: Final = {
    "timer_messages": (RequestCode.RECALL_MESSAGE,),
    "consumer_joins_and_leaves": (RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,),
    "transaction_checks": (RequestCode.CHECK_TRANSACTION_STATE, RequestCode.END_TRANSACTION),
    "request_reply": (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,),
    "retry": (RequestCode.CONSUMER_SEND_MSG_BACK,),
}
#: Codes that nobody here is asked with, and why.
NOT_ASKED: Final = {RequestCode.NOTIFY_UNSUBSCRIBE_LITE: "this broker has no lite topics"}
_UNUSED: Final = "5.5.0 does not send it"
_CONTROLLER: Final = "there is no controller yet"
NOT_SHOWN: Final = "handled, but no test of these kinds shows it yet"
#: Behind a test whose part has no passing run in the ledger.
NO_RUN: Final = " (no passing run is recorded)"
#: The part that runs the table of scenarios.
CLIENTS_PART: Final = ("interop", "broker")

_HEAD: Final = """\
# Compatibility with Apache RocketMQ 5.5.0

<!-- Written by `python -m tools.compatibility`; a test compares. -->

What works, what is refused and what comes later. "Works" stands only where a test shows it:

- *replay*: a request recorded with a real broker or name server, sent again and answered alike;
- *spec*: a test of the numbered item of the specification, in which the request is served;
- *interop*: the real client or tool, run against Skylark by

```console
$ make interop PART=broker
$ make interop PART=mqadmin
```

A refused request is answered with code 3, and if 5.5.0 sends it also with its name and the reason.
The last runs stand at the end; what rests on a part without a passing run says so.
"""


@dataclass
class Evidence:
    """Which tests name a command or a code; the texts are for readers."""

    commands: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    codes: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))


def collect() -> Evidence:
    """Everything that tests show."""
    evidence = Evidence()
    for run in RUNS:
        for name in run.scenarios:
            for frame in Scenario(name).requests:
                evidence.codes[frame.command.code].add("replay")
    for code in _name_server_requests():
        evidence.codes[code].add("replay")
    for scenario in SCENARIOS:
        for code in SCENARIO_CODES.get(scenario.key, ()):
            remark = "" if has_passed(CLIENTS_PART) else NO_RUN
            evidence.codes[code].add(f"interop {scenario.key}{remark}")
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        part = part_of(path.relative_to(ROOT).as_posix())
        is_shown = part is None or has_passed(part)
        collect_source(path.read_text(), evidence, "" if is_shown else NO_RUN)
    return evidence


def has_passed(part: tuple[str, str]) -> bool:
    """Whether the last whole run of a part of the long runs has passed."""
    run = read_ledger().get(part)
    return run is not None and run.has_passed


def _name_server_requests() -> Iterator[int]:
    for path in FRAMES.glob("*.jsonl"):
        for text in path.read_text().splitlines():
            line = json.loads(text)
            if line["link"].endswith("-namesrv") and not line["response"]:
                yield int(line["code"])


def collect_source(source: str, evidence: Evidence, remark: str = "") -> None:
    """Add what the tests of one file show; the remark goes with those of real clients."""
    for node in ast.parse(source).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        items: set[str] = set()
        served: set[RequestCode] = set()
        for decorator in node.decorator_list:
            if not isinstance(decorator, ast.Call):
                continue
            name = ast.unparse(decorator.func)
            if name == "pytest.mark.spec":
                items |= {item for item in _texts(decorator.args) if item.startswith(CHAPTERS)}
            elif name == "pytest.mark.serves":
                served |= _codes_in(decorator.args)
            elif name == "shows":
                for command in _texts(decorator.args):
                    evidence.commands[command].add(f"`{node.name}`{remark}")
                for code in _codes_in([each.value for each in decorator.keywords]):
                    test = node.name.removeprefix("test_")
                    evidence.codes[code].add(f"interop {test}{remark}")
        for code in served if items else ():
            evidence.codes[code].update(f"spec {item}" for item in items)


def _texts(nodes: Iterable[ast.expr]) -> list[str]:
    return [str(ast.literal_eval(node)) for node in nodes]


def _codes_in(nodes: Iterable[ast.AST]) -> set[RequestCode]:
    """The codes that are written as ``RequestCode.NAME``."""
    return {
        RequestCode[each.attr]
        for node in nodes
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.value, ast.Name)
        and each.value.id == "RequestCode"
    }


# ---- states --------------------------------------------------------------------------------------


def state_of_code(row: Row, shown: Mapping[int, set[str]]) -> tuple[str, str]:
    """State of a request code, and what shows it or why not."""
    code = row.code
    if not row.direction:
        return REFUSAL, _UNUSED
    if (reason := REFUSED.get(code) or NOT_ASKED.get(code)) is not None:
        return _refusal(reason), reason
    if row.receivers == {"K"}:
        return LATER, _CONTROLLER
    if code in shown:
        return WORKS, _evidence(shown[code])
    return LATER, NOT_SHOWN


def state_of_command(command: str, shown: Mapping[str, set[str]]) -> tuple[str, str]:
    """State of an mqadmin command, and what shows it or why not."""
    if command in shown:
        return WORKS, ", ".join(sorted(shown[command]))
    if (code := mqadmin_commands.REFUSED_BY_CODE.get(command)) is not None:
        return _refusal(REFUSED[code]), REFUSED[code]
    reason = mqadmin_commands.WITHOUT_SERVER.get(command, NOT_SHOWN)
    return _refusal(reason), reason


def _refusal(reason: str) -> str:
    """The table of refusals says "yet" where something is to come."""
    return LATER if " yet" in reason else REFUSAL


def _evidence(tests: set[str]) -> str:
    """``replay; spec 13.4, 13.7; interop queries``: kinds in this order."""
    kinds = ("replay", "spec", "interop")
    by_kind = {
        kind: sorted(test.removeprefix(kind).strip() for test in tests if test.startswith(kind))
        for kind in kinds
    }
    shown = (f"{kind} {', '.join(names)}".strip() for kind, names in by_kind.items() if names)
    return "; ".join(shown)


# ---- the document --------------------------------------------------------------------------------


def document() -> str:
    """The whole file."""
    evidence = collect()
    return "\n".join([_HEAD, _clients(), _commands(evidence), _codes(evidence), _long_runs()])


def _long_runs() -> str:
    ledger = read_ledger()
    rows = []
    for kind, part in parts():
        run = ledger.get((kind, part))
        name = f"`make {kind} PART={part}`"
        if run is None:
            rows.append([name, "no run is recorded", "", "", "", "", ""])
            continue
        if run.seeds:
            name = f"`make {kind} PART={part} SEEDS={run.seeds}`"
        counts = [str(run.passed), str(run.failed), str(run.skipped)]
        rows.append([name, f"`{run.commit}`", run.date, *counts, run.machine])
    return "## Long runs\n\nThe last whole run of each part.\n\n" + _table(
        ["Run", "Commit", "Date", "Passed", "Failed", "Skipped", "Machine"], rows
    )


def _clients() -> str:
    rows = [
        [scenario.title, *(client_cell(scenario, client) for client in CLIENTS)]
        for scenario in SCENARIOS
    ]
    text = "A cell is *yes*, perhaps with a limit, or says why not."
    if not has_passed(CLIENTS_PART):
        text += f" All cells{NO_RUN}."
    return f"## Clients\n\n{text}\n\n" + _table(["Scenario", *CLIENTS.values()], rows)


def client_cell(scenario: ClientScenario, client: str) -> str:
    """What the table says of a scenario with one client."""
    note = scenario.notes.get(client)
    return scenario.without.get(client, "yes" if note is None else f"yes; {note}")


def _commands(evidence: Evidence) -> str:
    rows = []
    for command in sorted(mqadmin_commands.NAMES, key=str.lower):
        state, why = state_of_command(command, evidence.commands)
        rows.append([f"`{command}`", state, why])
    counts = _counts(row[1] for row in rows)
    return f"## mqadmin\n\n{counts}\n\n" + _table(
        ["Command", "State", "Shown by, or why not"], rows
    )


def _codes(evidence: Evidence) -> str:
    rows = []
    for code, row in CATALOGUE.items():
        state, why = state_of_code(row, evidence.codes)
        rows.append([str(code), row.name, row.direction.replace("->", " to "), state, why])
    counts = _counts(row[3] for row in rows)
    legend = (
        "Parties: C client, B broker, S slave broker, N name server, A admin tool, K controller."
    )
    return f"## Request codes\n\n{legend} {counts}\n\n" + _table(
        ["Code", "Name", "Between", "State", "Shown by, or why not"], rows
    )


def _counts(states: Iterable[str]) -> str:
    listed = list(states)
    return ", ".join(f"{listed.count(state)} {state}" for state in (WORKS, REFUSAL, LATER)) + "."


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main() -> None:
    made = document()
    if "--check" not in sys.argv[1:]:
        DOCUMENT.write_text(made)
    elif DOCUMENT.read_text() != made:
        sys.exit("docs/compatibility.md is out of date: run python -m tools.compatibility")


if __name__ == "__main__":
    main()
