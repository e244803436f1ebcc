"""Skylark: Apache RocketMQ rebuilt in Python.

Here are the names that both kinds of clients share: messages, results, options, errors. Producers
and consumers are in :mod:`skylark.aio` (asyncio) and :mod:`skylark.sync` (blocking), with the same
names in both; ``docs/clients.md`` is the tutorial.

Everything in Skylark imports this module, so it loads nothing by itself: the names come from
:mod:`skylark.client.public_names` when the first of them is asked for.
"""

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from skylark.client.public_names import *  # noqa: F403 - its __all__ is the list of our names
else:

    def __getattr__(name: str) -> object:
        if name.startswith("__") and name != "__all__":  # what the import system asks for
            raise AttributeError(name)
        from skylark.client import public_names as public

        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module 'skylark' has no attribute {name!r}")
        value = globals()[name] = getattr(public, name)
        return value

    def __dir__() -> list[str]:
        from skylark.client import public_names as public

        return sorted({*globals(), *public.__all__})
