"""Plans of protection: budgets, weights by a linear program, sampling probabilities, and the noise they need."""
