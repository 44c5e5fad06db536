"""Private data sets to train on: texts and images with their labels, read from files with every fault named."""
