"""What a training run reveals about secrets: bounds for all secrets of a data set at once."""
