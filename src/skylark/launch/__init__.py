"""Starts and supervises the local cluster of ``skylark up``."""
