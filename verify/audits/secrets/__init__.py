"""The statements of an audit of secrets: figures that must agree, and those that the kept ranks give."""
