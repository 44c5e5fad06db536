"""The network in training: adapters, shards, precision, memory, and tensors in files."""
