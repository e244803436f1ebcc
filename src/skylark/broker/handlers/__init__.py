"""What a broker does with requests: one module per family, one method per request code.

A module holds a class that takes exactly the tables it needs and has ``add_to(dispatcher)``.
Methods that only touch memory are hot and run where the bytes were read; those that wait for the
disk or for other machines are coroutines (see :mod:`skylark.net.dispatch`). Codes, remarks and ext
fields are Java's. Where Java fills a typed response header, the ext map is there even if it is
empty, also in a refusal.
"""
