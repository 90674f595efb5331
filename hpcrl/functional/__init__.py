"""Pure functions on time-major [T, B] tensors."""
