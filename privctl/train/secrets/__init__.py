"""Training by a plan that protects secrets: reads the plan, recomputes its bounds, and states the guarantees."""
