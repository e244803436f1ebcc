"""Writing topics with Spark: options, rows to messages, task writers."""
