"""Event loops of tests: both kinds that are supported, and loops that were closed too early."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import warnings
import weakref
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

LoopFactory = Callable[[], asyncio.AbstractEventLoop]
LOOP_FACTORIES: dict[str, LoopFactory] = {
    "asyncio": asyncio.SelectorEventLoop,
    "uvloop": uvloop.new_event_loop,
}


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Turn an ``async def`` test into a plain one that runs once per loop."""

    @functools.wraps(test)
    def run(*args: Any, loop_factory: LoopFactory, **kwargs: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(*args, **kwargs))

    # pytest injects fixtures by the signature: those of the wrapped test, and the loop.
    signature = inspect.signature(test)
    loop = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), loop]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    both: Callable[..., Callable[..., None]] = pytest.mark.parametrize(
        "loop_factory", LOOP_FACTORIES.values(), ids=list(LOOP_FACTORIES)
    )
    return both(run)


def is_collected(abandoned: weakref.ref[Any]) -> bool:
    """Whether nothing keeps what belonged to a loop that was closed too early.

    What was left open warns when it goes. So it is let go here, and not in some other test.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return abandoned() is None


async def eventually(is_so: Callable[[], bool]) -> None:
    """Wait for what other threads do, in real time."""
    for _ in range(6000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen within a minute")
