"""What an audit's report states, computed again from its counts, its ranks and its files."""
