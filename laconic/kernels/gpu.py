"""The ops in Triton, for CUDA; one without a function here runs its PyTorch reference."""
