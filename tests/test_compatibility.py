"""``docs/compatibility.md`` is what its generator writes, and claims nothing that no test shows."""

from __future__ import annotations

import re

import msgspec
import pytest

from skylark.broker.admin.refused_requests import REFUSED
from skylark.wire.catalogue import CATALOGUE
from skylark.wire.codes import RequestCode
from tests.interop import mqadmin_commands
from tests.interop.broker_scenarios.table import CPP, JAVA_4, JAVA_5, Scenario
from tests.support.long_runs import read_ledger
from tools import compatibility
from tools.compatibility import LATER, NO_RUN, REFUSAL, WORKS, Evidence


def test_the_document_is_up_to_date() -> None:
    written = compatibility.DOCUMENT.read_text()
    assert written == compatibility.document(), "run python -m tools.compatibility"


def test_every_code_and_command_has_a_row() -> None:
    text = compatibility.DOCUMENT.read_text()
    codes = re.findall(r"^\| (\d+) \| (\w+) \| [A-Z to]* ?\| (\w+) \| ", text, re.MULTILINE)
    assert [(int(code), name) for code, name, _ in codes] == [
        (code, row.name) for code, row in CATALOGUE.items()
    ]
    commands = re.findall(r"^\| `(\w+)` \| (\w+) \| ", text, re.MULTILINE)
    assert sorted(name for name, _ in commands) == sorted(mqadmin_commands.NAMES)
    assert {state for *_, state in [*codes, *commands]} == {WORKS, REFUSAL, LATER}


def test_what_the_servers_handle_is_shown() -> None:
    evidence = compatibility.collect()
    unshown = [
        row.name
        for row in CATALOGUE.values()
        if compatibility.state_of_code(row, evidence.codes)[1] == compatibility.NOT_SHOWN
    ]
    assert unshown == []
    states = {
        name: compatibility.state_of_command(name, evidence.commands)[0]
        for name in mqadmin_commands.NAMES
    }
    assert [name for name in mqadmin_commands.SERVED if states[name] != WORKS] == []


def test_a_command_stands_in_one_list() -> None:
    names = mqadmin_commands.NAMES
    assert len(set(names)) == len(names) == 96
    assert set(mqadmin_commands.REFUSED_BY_CODE.values()) <= REFUSED.keys()


def test_a_cell_of_the_clients_says_yes_with_its_limit_or_why_not() -> None:
    scenario = Scenario("key", "Title", {CPP: "not in C"}, {JAVA_4: "one at a time"})
    cells = [compatibility.client_cell(scenario, client) for client in (JAVA_5, JAVA_4, CPP)]
    assert cells == ["yes", "yes; one at a time", "not in C"]


SOURCE = """
from tests.interop.shown import shows

@pytest.mark.spec("broker.13.4", "broker.13.5")
@pytest.mark.serves(RequestCode.PULL_MESSAGE)
async def test_spec(world):
    await world.call(RequestCode.PULL_MESSAGE)

@pytest.mark.spec("store.12.45")
async def test_a_slave_refuses(world):
    assert (await world.call(RequestCode.END_TRANSACTION)).code == 1

@pytest.mark.serves(RequestCode.GET_MAX_OFFSET)
def test_without_an_item(world):
    world.call(RequestCode.GET_MAX_OFFSET)

@shows("topicList", "topicRoute", codes=[RequestCode.GET_MAX_OFFSET])
def test_real_tool(admin):
    admin.run("clusterList", RequestCode.GET_MIN_OFFSET)

@pytest.mark.spec("client.8.1")
def test_of_clients(client):
    client.call(RequestCode.HEART_BEAT)

def test_other(world):
    world.call(RequestCode.SEND_MESSAGE)
"""


def test_declarations_and_marks_are_read() -> None:
    evidence = Evidence()
    compatibility.collect_source(SOURCE, evidence)
    assert evidence.commands == {name: {"`test_real_tool`"} for name in ("topicList", "topicRoute")}
    assert evidence.codes == {
        RequestCode.PULL_MESSAGE: {"spec broker.13.4", "spec broker.13.5"},
        RequestCode.GET_MAX_OFFSET: {"interop real_tool"},
    }


def test_a_refusal_shows_nothing() -> None:
    """A slave that refuses what a master does."""
    codes = compatibility.collect().codes
    for code in (RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.END_TRANSACTION):
        assert not any("store.12.45" in shown for shown in codes[code])
    assert codes[RequestCode.SET_MESSAGE_REQUEST_MODE] == {"replay", "interop queues_and_modes"}
    assert "replay" in codes[RequestCode.GET_BROKER_CONFIG]  # another answer, and no refusal


def test_what_rests_on_a_part_without_a_passing_run_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = {part: run for part, run in read_ledger().items() if part != ("interop", "timer")}
    mqadmin = ("interop", "mqadmin")
    runs[mqadmin] = msgspec.structs.replace(runs[mqadmin], failed=1)
    monkeypatch.setattr(compatibility, "read_ledger", lambda: runs)
    text = compatibility.document()
    assert f"| `addWritePerm` | works | `test_write_permission_of_a_broker`{NO_RUN} |" in text
    assert "| `make interop PART=timer` | no run is recorded |" in text
    assert "All cells" not in text  # of the clients, whose part has passed
    monkeypatch.setattr(compatibility, "read_ledger", dict)
    assert f"All cells{NO_RUN}." in compatibility._clients()
    evidence = compatibility.collect()
    shown = set().union(*evidence.codes.values(), *evidence.commands.values())
    interop = {each for each in shown if each.startswith(("interop", "`test_"))}
    assert len(interop) > 50
    assert interop == {each for each in shown if each.endswith(NO_RUN)}


def test_states() -> None:
    def state(code: RequestCode, *tests: str) -> tuple[str, str]:
        shown = {int(code): set(tests)} if tests else {}
        return compatibility.state_of_code(CATALOGUE[code], shown)

    shown = ("spec broker.13.7", "interop queries", "replay", "spec broker.13.4")
    evidence = "replay; spec broker.13.4, broker.13.7; interop queries"
    assert state(RequestCode.PULL_MESSAGE, *shown) == (WORKS, evidence)
    assert state(RequestCode.PULL_MESSAGE) == (LATER, compatibility.NOT_SHOWN)
    # What is refused does not work, even if a test names it.
    rollback = REFUSED[RequestCode.POP_ROLLBACK]
    assert state(RequestCode.POP_ROLLBACK, "replay") == (REFUSAL, rollback)
    assert state(RequestCode.ADD_BROKER)[0] == REFUSAL
    assert state(RequestCode.QUERY_BROKER_OFFSET)[0] == REFUSAL
    assert state(RequestCode.CONTROLLER_ELECT_MASTER)[0] == LATER
    assert compatibility.state_of_command("createUser", {})[0] == LATER
    assert compatibility.state_of_command("switchTimerEngine", {})[0] == REFUSAL
    assert compatibility.state_of_command("topicList", {})[0] == LATER
