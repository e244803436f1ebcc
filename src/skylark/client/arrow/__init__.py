"""Topics as Arrow record batches."""
