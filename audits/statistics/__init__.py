"""Estimates with intervals: bounds on epsilon, areas under ROC curves, power, corrections for multiple tests."""
