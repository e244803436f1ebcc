"""Foundations every other package stands on: errors, clock, names, configuration, metrics."""
