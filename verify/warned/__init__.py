"""The warnings of reports: which texts privctl writes, and which of them a report cannot be without."""
