"""Numbers with their intervals: bounds on epsilon, areas under ROC curves, power, corrections for many tests."""
