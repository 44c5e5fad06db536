"""Shadow models: trained like the audited one on random halves of a pool, so that attacks know what is usual."""
