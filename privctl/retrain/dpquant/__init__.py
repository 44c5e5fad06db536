"""DPQuant from what a user asks to a finished model and its report."""
