"""The load generator of ``skylark bench``: ordinary clients with counters and timers.

It is separate from the client library, which applications use, and from the command line, which
only parses options and prints results.
"""
