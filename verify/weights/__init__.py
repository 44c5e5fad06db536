"""Whether a trained model's weights can result from the start, the steps and the noise that its report states."""
