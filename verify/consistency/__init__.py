"""Whether a report is complete and consistent, and whether its guarantees follow from their assumptions."""
