"""What users may rely on: ``docs/clients.md`` lists it, and the list is that of the code.

Each table below the heading *All public names* stands under a heading that says what it lists;
names are in the first column, in backquotes. Renaming or dropping one is a change that users see:
the document and a news fragment belong to it. Settings are listed in ``docs/reference``, which is
made from the code.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import skylark
from skylark import aio, sync
from skylark.client import public_names as public

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
CLIENTS = ("Producer", "PushConsumer", "LitePullConsumer", "PullConsumer", "PullSchedule")
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "SendResult": skylark.SendResult,
    "Message": skylark.Message,
    "MessageQueue": skylark.MessageQueue,
    "TransactionResult": aio.TransactionResult,
    "PullResult": aio.PullResult,
    "Missing": skylark.Missing,
}
#: Methods that other modules of ours need, and applications do not.
INTERNAL = {
    "queue_opened",
    "queue_released",
    "queues_settled",
    "refuse_in_handler",
    "run_until",
    "messages",
}


def tables() -> dict[str, list[list[str]]]:
    """The rows of the document's tables by the heading above them."""
    found: dict[str, list[list[str]]] = {}
    heading = ""
    for line in DOCUMENT.read_text().splitlines():
        if match := re.match(r"#+ (.*)", line):
            heading = match.group(1)
        elif line.startswith("| `"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
            found.setdefault(heading, []).append([cells[0].strip("`"), *cells[1:]])
    return found


def listed(heading: str) -> list[str]:
    return [row[0] for row in tables()[heading]]


def members(kind: type) -> list[str]:
    """Public attributes, methods and fields."""
    names = {name for name in dir(kind) if not name.startswith("_")} - INTERNAL
    return sorted(names)


def is_error(name: str) -> bool:
    found = getattr(skylark, name)
    return inspect.isclass(found) and issubclass(found, Exception)


def test_names_of_the_package() -> None:
    assert listed("skylark") == sorted(n for n in public.__all__ if not is_error(n))
    assert set(public.__all__) <= set(dir(skylark))
    assert skylark.__all__ == public.__all__  # type: ignore[attr-defined]


def test_names_of_both_faces() -> None:
    assert listed("skylark.aio and skylark.sync") == aio.__all__ == sync.__all__


@pytest.mark.parametrize("name", CLIENTS)
def test_members_of_clients(name: str) -> None:
    documented = listed(name)
    face = getattr(sync, name)
    assert documented == members(face)
    instance_attributes = {
        "group",
        "options",
        "settings",
        "state",
        "client_id",
        "stats",
        "consumer",
    }
    twin = set(members(getattr(aio, name))) | instance_attributes
    missing = set(documented) - twin
    assert not missing, f"skylark.aio.{name} lacks {missing}"
    assert set(members(getattr(aio, name))) <= set(documented)


@pytest.mark.parametrize("name", CLIENTS)
def test_both_faces_take_the_same_arguments(name: str) -> None:
    for method in ("__init__", *members(getattr(sync, name))):
        ours, theirs = (getattr(getattr(face, name), method, None) for face in (sync, aio))
        if not inspect.isfunction(ours):
            continue
        assert inspect.isfunction(theirs)
        parameters = dict(inspect.signature(theirs).parameters)
        parameters.pop("runtime", None)  # for tests, which put a client on another network
        assert list(inspect.signature(ours).parameters) == list(parameters), method


@pytest.mark.parametrize("name", ["read_arrow", "serve_metrics"])
def test_functions_of_both_faces_take_the_same_arguments(name: str) -> None:
    ours, theirs = (inspect.signature(getattr(face, name)) for face in (sync, aio))
    assert list(ours.parameters) == [name for name in theirs.parameters if name != "runtime"]


def test_fields_of_a_received_message() -> None:
    assert listed("MessageExt") == members(skylark.MessageExt)


@pytest.mark.parametrize("name", STRUCTS)
def test_fields_of_results(name: str) -> None:
    assert listed(name) == [field.name for field in msgspec.structs.fields(STRUCTS[name])]


def test_transactions() -> None:
    assert listed("Transaction") == members(sync.Transaction) == members(aio.Transaction)


def test_exceptions() -> None:
    rows = tables()["Exceptions"]
    errors = sorted(name for name in public.__all__ if is_error(name))
    assert [row[0] for row in rows] == errors
    for name, base, retriable, *_ in rows:
        error: type[skylark.SkylarkError] = getattr(skylark, name)
        bases = [each.__name__ for each in error.__bases__]
        assert base.replace("`", "").split(", ") == bases, name
        assert retriable == ("yes" if error.retriable else "no"), name
        assert issubclass(error, skylark.SkylarkError)
        assert ("Timeout" in name) <= issubclass(error, TimeoutError)
        for attribute in ("retriable", "remark"):
            assert hasattr(error, attribute)
    assert skylark.SkylarkError("x").hint is None


# ---- the typed face ------------------------------------------------------------------------------


def test_a_users_program_passes_mypy_strict(tmp_path: Path) -> None:
    program = Path(__file__).parent / "typed_user_program.py"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--config-file", "", "--cache-dir", str(tmp_path), str(program)),
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    notes = re.findall(r'Revealed type is "(.*)"', done.stdout)
    assert notes == [
        "skylark.client.core.client_message.SendResult",
        "list[skylark.client.core.client_message.MessageExt]",
        "concurrent.futures._base.Future[skylark.client.core.client_message.SendResult]",
        "skylark.client.core.client_message.MessageExt",
        "skylark.client.core.client_message.SendResult",
        "_asyncio.Future[skylark.client.core.client_message.SendResult]",
        "list[skylark.client.core.client_message.MessageExt]",
    ], done.stdout + done.stderr
    assert " error: " not in done.stdout


# ---- a cheap import, on any platform -------------------------------------------------------------

HEAVY = ("asyncio", "msgspec", "numpy", "pyarrow", "socket", "uvloop", "skylark.client")


def run(program: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


def test_importing_the_package_loads_nothing() -> None:
    loaded = run(f"import skylark, sys; print([m for m in {HEAVY} if m in sys.modules])")
    assert loaded == "[]\n"


def test_shared_names_load_no_event_loop() -> None:
    heavy = ("asyncio", "numpy", "pyarrow", "uvloop")
    program = (
        f"import skylark, sys; skylark.Message; print([m for m in {heavy} if m in sys.modules])"
    )
    assert run(program) == "[]\n"


def test_the_clients_load_no_heavy_libraries() -> None:
    heavy = ("numpy", "pyarrow", "opentelemetry", "skylark.broker", "skylark.store")
    program = (
        f"import skylark.aio, skylark.sync, sys; print([m for m in {heavy} if m in sys.modules])"
    )
    assert run(program) == "[]\n"


def test_star_import_and_unknown_names() -> None:
    assert run("from skylark import *; print(Message.__name__)") == "Message\n"
    with pytest.raises(AttributeError, match="has no attribute 'Massage'"):
        skylark.Massage  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(AttributeError):
        skylark.__path_hook__  # type: ignore[attr-defined]  # noqa: B018


ELSEWHERE = """
import os, signal, socket, sys

for missing in ("fcntl", "resource", "uvloop", "grp", "pwd", "termios"):
    sys.modules[missing] = None              # as if it were not there: importing it fails
for name in ("fork", "register_at_fork", "sched_getaffinity", "getuid", "pidfd_open", "uname"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGUSR1", "SIGUSR2", "pthread_kill", "pthread_sigmask"):
    if hasattr(signal, name):
        delattr(signal, name)
for name in ("SO_REUSEPORT", "TCP_USER_TIMEOUT"):
    if hasattr(socket, name):
        delattr(socket, name)
platform = {platform!r}
sys.platform = platform

from skylark import *
from skylark.sync import Producer
import skylark.aio

try:
    with Producer("elsewhere", ClientOptions(namesrv="127.0.0.1:1")) as producer:
        producer.send(Message("T", b"x"))
except SkylarkError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_imports_and_threads_work_without_what_other_systems_lack(platform: str) -> None:
    # asyncio itself must be that of this system, so it is loaded before the platform changes.
    program = "import asyncio, selectors, subprocess\n" + ELSEWHERE.format(platform=platform)
    assert run(program) in ("NoRouteError\n", "NoNameServerError\n", "SendFailedError\n")
