"""For training loops that are not privctl's: private steps, audits on the way, reports of what they say they did."""
