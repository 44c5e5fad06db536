"""The theorems, one module per subject: functions from numbers to theorems about them."""
