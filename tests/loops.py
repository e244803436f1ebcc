"""Run an asynchronous test on asyncio's loop and on uvloop: both are supported, both are tested."""

from __future__ import annotations

import asyncio
import functools
import inspect
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
