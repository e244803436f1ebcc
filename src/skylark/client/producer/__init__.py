"""Producers: accumulator, sender, transactions and request-reply."""
