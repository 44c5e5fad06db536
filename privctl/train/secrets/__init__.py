"""Training by a plan of protection: reading the plan, recomputing its bounds, and the guarantees that follow."""
