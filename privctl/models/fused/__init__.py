"""Parts of forward passes by machine code, in float32 or bfloat16, on a CPU where llvmlite is installed."""
