"""Files: safetensors read lazily and written streaming, digests, and writes that are whole or absent."""
