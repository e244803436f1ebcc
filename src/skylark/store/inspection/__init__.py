"""Inspection of a store directory from outside: lists, reads and compares files; changes none."""
