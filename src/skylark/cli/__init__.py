"""The command line ``skylark``: one module per command or noun, output as tables or JSON."""
