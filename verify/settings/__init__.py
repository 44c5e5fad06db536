"""Settings that several training methods share: users, clip norms, public records."""
