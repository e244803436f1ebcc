"""Skylark: Apache RocketMQ rebuilt in Python (work in progress; see README.md)."""
