"""Programs of vector operations, compiled by LLVM for this processor at run time. Most modules need llvmlite."""
