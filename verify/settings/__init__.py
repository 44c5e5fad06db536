"""What several ways to train state alike: users, clip norms, public records."""
