"""States of a client: created, running, stopped; a stopped client cannot start again.

::

    CREATE_JUST --start--> START_FAILED --start succeeded--> RUNNING --stop--> SHUTDOWN_ALREADY

During a start the state is START_FAILED, so a start that raises leaves the right state behind. A
consumer goes back to CREATE_JUST then, because its start may be repeated.
Counterpart of Java's ``ServiceState``.
"""

from __future__ import annotations

import abc
import enum
from types import TracebackType
from typing import Self

from skylark.client.core.argument_checks import suggests_keywords
from skylark.core.errors import ClientStateError, ConfigError


class ServiceState(enum.Enum):
    """The state of a client; the values are Java's."""

    CREATE_JUST = "CREATE_JUST"
    START_FAILED = "START_FAILED"
    RUNNING = "RUNNING"
    SHUTDOWN_ALREADY = "SHUTDOWN_ALREADY"


class Startable(abc.ABC):
    """A client: ``start()`` and ``stop()``, or ``async with`` for both."""

    __slots__ = ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "__init__" in vars(cls):
            cls.__init__ = suggests_keywords(cls.__init__)  # type: ignore[method-assign]

    @abc.abstractmethod
    async def start(self) -> None:
        """Connect and start; once."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """Stop in order; a second call does nothing."""

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except ConfigError as error:  # it is about the caller's arguments: our frames do not help
            raise error.with_traceback(None) from error.__cause__
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.stop()


_PROBLEMS = {
    ServiceState.CREATE_JUST: ("has not been started", "call start(), or use `(async) with`"),
    ServiceState.START_FAILED: ("did not start, or is starting", "see the error of start()"),
    ServiceState.SHUTDOWN_ALREADY: ("has been stopped", "make a new one: it cannot start again"),
}


def require_running(state: ServiceState, what: str) -> None:
    """Raise ClientStateError unless ``state`` is RUNNING; ``what`` names the client."""
    if state is not ServiceState.RUNNING:
        problem, hint = _PROBLEMS[state]
        raise ClientStateError(f"{what} {problem}", hint=hint)


def require_not_stopped(state: ServiceState, what: str) -> None:
    """Raise ClientStateError if ``stop`` was called during the start."""
    if state is ServiceState.SHUTDOWN_ALREADY:
        raise ClientStateError(f"{what} was stopped while it started")


def require_new(state: ServiceState, what: str) -> None:
    """Raise ClientStateError if the client was started before."""
    if state is ServiceState.RUNNING:
        raise ClientStateError(f"{what} runs already")
    if state is not ServiceState.CREATE_JUST:
        require_running(state, what)
