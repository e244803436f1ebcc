"""What producers and consumers share: instance, connections, routes, heartbeats, options."""
