"""Requests of administrators, by what they are about. Answers to ``AdminBrokerProcessor``."""
