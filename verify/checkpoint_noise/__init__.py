"""What was really done to the bytes, measured: the noise between a model and the one it was made from."""
