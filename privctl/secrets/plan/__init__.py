"""Plans of secret protection: budgets, weights from a linear program, sampling probabilities, required noise."""
