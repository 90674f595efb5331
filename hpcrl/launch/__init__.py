"""From a recipe to an exit code."""
