"""Messages out of the broker: pulls, their filters and long polling."""
