"""The demonstration: invented records, a small model that learns them by heart, nothing from the network."""
