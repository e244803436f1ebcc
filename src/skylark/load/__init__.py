"""Load on a cluster, as ``skylark bench`` makes it: ordinary clients, counted and timed.

A package of its own, between the clients and the command line: the client library is for
applications and should not carry a load generator, and a command should hold no work.
"""
