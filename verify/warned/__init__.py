"""The warnings of reports: none but those of ``verify.texts``, and all that other entries call for."""
