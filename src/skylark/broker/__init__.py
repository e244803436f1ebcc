"""The broker: keeps topics and messages, and serves producers, consumers and administrators."""
