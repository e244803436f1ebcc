"""Test aids shipped to users: a broker in the test's own process, virtual time, seeded faults.

::

    async with skylark.testing.broker(clock="virtual") as b:
        topic = await b.topic()
        async with b.producer() as producer:
            await producer.send(Message(topic, b"hello"))
        await b.clock.advance(hours=2)

``docs/testing.md`` is the guide. The pytest plugin (fixtures ``rocketmq``, ``rocketmq_topic``,
``rocketmq_group``, marker ``faults``) is :mod:`skylark.testing.plugin`. It is loaded in every run
of pytest where Skylark is installed, so this package loads nothing before a name is asked for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from skylark.testing.testing_exports import *  # noqa: F403 - its __all__ is the list of our names
else:

    def __getattr__(name: str) -> object:
        if name.startswith("__") and name != "__all__":  # what the import system asks for
            raise AttributeError(name)
        # By its full name: it is not ours to look up yet.
        import skylark.testing.testing_exports as public

        if name != "__all__" and name not in public.__all__:
            raise AttributeError(f"module 'skylark.testing' has no attribute {name!r}")
        value = globals()[name] = getattr(public, name)
        return value

    def __dir__() -> list[str]:
        import skylark.testing.testing_exports as public

        return sorted({*globals(), *public.__all__})
