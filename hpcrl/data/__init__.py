"""Layout only: specs, trajectories, admission. No I/O, no MPI."""
