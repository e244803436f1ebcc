"""Topics of the broker, their attributes, and their registration with name servers."""
