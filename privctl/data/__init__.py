"""Private data sets to train on: texts, images and sounds with their labels. Every error names the faulty file."""
