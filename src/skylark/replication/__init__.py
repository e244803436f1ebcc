"""Replication: a slave that has every message its master acknowledged."""
