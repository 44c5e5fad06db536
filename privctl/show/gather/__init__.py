"""From reports on disk to the data of a page: the chain of reports, and the array files next to them."""
