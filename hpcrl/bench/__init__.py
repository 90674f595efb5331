"""Measurements side by side, as ratios in one run."""
