"""From a recipe to an exit code."""

from hpcrl.launch.recipes import load_config
from hpcrl.launch.submit import RunFailedError, SubmittedRun, submit, submit_seeds, submit_sweep

__all__ = ["RunFailedError", "SubmittedRun", "load_config", "submit", "submit_seeds", "submit_sweep"]
