"""Whether a trained model's weights can be what its report says: from the start, by so many steps, with that noise."""
