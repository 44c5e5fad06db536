"""Privacy losses of one step or one pass, on cells and from both sides: what kinds of events are made of."""
