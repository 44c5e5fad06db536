"""The warnings of reports: only those in ``verify.texts``, and all those that other entries call for."""
