"""The Slurm cluster of tests/slurm, for the cells that need it."""

from tests.slurm.conftest import cluster

__all__ = ["cluster"]
