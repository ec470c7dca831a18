"""Building with CUDA, and checks on a machine with a GPU."""
