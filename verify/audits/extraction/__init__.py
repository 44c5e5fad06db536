"""What an audit of extraction says of its texts."""
