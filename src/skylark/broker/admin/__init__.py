"""Requests of administrators, one module per noun. Counterpart of ``AdminBrokerProcessor``."""
