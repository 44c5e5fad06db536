"""What a run gives away about secrets: bounds for all secrets of a data set at once."""
