"""Which messages a subscription wants: tags, SQL92 expressions, and the Bloom pre-filter."""
