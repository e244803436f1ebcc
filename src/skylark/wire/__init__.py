"""The RocketMQ wire and record formats, sans-IO: bytes in, values out, and back.

Nothing below this package may import asyncio, socket, mmap, time or threading.
"""
