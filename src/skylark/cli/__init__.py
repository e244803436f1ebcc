"""The command line ``skylark``: one file per noun, output as tables or JSON."""
