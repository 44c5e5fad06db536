"""The state of a run that may be interrupted: its folder, its logs of begun steps, and what --resume compares."""
