"""Accounting: from public parameters to guarantees. The one place other rooms get an epsilon from."""
