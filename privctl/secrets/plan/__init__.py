"""Plans of protection: budgets, weights from a linear program, sampling probabilities, and the required noise."""
