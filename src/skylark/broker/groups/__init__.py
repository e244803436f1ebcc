"""Consumer and producer groups: members, subscriptions, offsets, locks and assignment."""
