"""The message store: RocketMQ's files. Synchronous: no asyncio and no sockets below here."""
