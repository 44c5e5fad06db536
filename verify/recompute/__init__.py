"""Every bound again from its definition, with certified ends, by other routes than the accounting that claimed it."""
