"""Test aids shipped to users: virtual clock, memory network, seeded faults."""
