"""Custom headers (the ``extFields`` of a command), one module per family of requests."""
