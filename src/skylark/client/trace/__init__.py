"""Message traces: records, hooks and their dispatcher."""
