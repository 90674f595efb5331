"""The only package that speaks MPI."""
