"""The rows of the catalogue by family; ``skylark.wire.catalogue`` puts them together."""
