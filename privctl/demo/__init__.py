"""The demonstration: invented records and a small model that memorizes them; nothing is downloaded."""
