"""Guards on loading a model: its files can only build the digested weights, within the memory these need."""
