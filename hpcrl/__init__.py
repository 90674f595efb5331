"""hpcrl: reinforcement learning as MPI batch jobs. Importing this loads neither torch nor MPI."""

__version__ = "0.1.0"
