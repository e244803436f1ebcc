"""Exactly-once writes: commit protocol, transaction log and half messages."""
