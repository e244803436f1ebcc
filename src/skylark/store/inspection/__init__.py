"""A store directory seen from outside: listed, read and compared, and never changed."""
