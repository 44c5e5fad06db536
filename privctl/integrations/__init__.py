"""For training loops of your own or of other programs: private steps, audits, and reports of the training."""
