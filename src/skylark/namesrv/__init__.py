"""The name server: who has which topic, and at which address."""
