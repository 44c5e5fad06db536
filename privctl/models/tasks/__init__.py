"""What a model is trained to do: examples, their losses, and models ready for them."""
