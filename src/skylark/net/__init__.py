"""asyncio shells over the sans-IO protocol: server, client, dispatch, metrics endpoint."""
