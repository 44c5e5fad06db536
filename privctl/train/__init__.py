"""Training whose steps are what a mechanism says they are, and the models it releases."""
