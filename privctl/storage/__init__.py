"""Files: lazy reading and streaming writes of safetensors, digests, and atomic writes."""
