"""Accounting: from public parameters to guarantees. The one place other packages get an epsilon from."""
