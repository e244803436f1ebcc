"""The message store: reads and writes RocketMQ's files. Synchronous: no asyncio and no sockets."""
