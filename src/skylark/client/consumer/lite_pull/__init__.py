"""The lite pull consumer: assigned queues, polling and commits."""
