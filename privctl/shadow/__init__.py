"""Shadow models: trained like the audited one on random halves of a pool, as a baseline for attacks."""
