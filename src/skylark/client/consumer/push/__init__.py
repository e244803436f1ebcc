"""The push consumer: pull loops, handlers, settlement and rebalancing."""
