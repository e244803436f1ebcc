"""Producers and consumers: one core under the asyncio and the blocking interface.

Names for users are exported by :mod:`skylark`, :mod:`skylark.aio` and :mod:`skylark.sync`.
"""
