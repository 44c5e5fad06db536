"""What a secret's presence is bounded by: all secrets of a plan at once."""
