"""What the broker counts: statistics, metrics and their Prometheus exporter."""
