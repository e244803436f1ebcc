"""Messages into the broker: sends, batches, send-backs, replies and recalls."""
