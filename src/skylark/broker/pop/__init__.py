"""Pop: consumption without queue ownership."""
