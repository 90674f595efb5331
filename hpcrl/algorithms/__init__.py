"""Algorithms: compute only, no MPI, no files."""
