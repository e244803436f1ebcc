"""Custom headers (the ``extFields`` of a command), one module per family of requests.

A field without default is one that Java marks as required *and* keeps in an object: without it the
request fails. A Java primitive can never be missing: it has the default that Java gives it and is
always written. Everything else is ``None`` when absent. The fields that all 5.x requests inherit
(``ns``, ``nsd``, ``bname``, ``oway``, ``lo``) are not declared: Skylark reads none of them, and
ignores unknown entries.
"""
