"""For training loops that are not privctl's: private steps, audits during training, and reports of what was done."""
