"""The network as it is trained: adapters, shards, precision, memory, and its tensors in files."""
