"""JSON bodies of commands as typed structs, one module per family."""
