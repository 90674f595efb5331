"""Fault drills: runs of the user's own recipe, hurt from outside, to see which protections hold."""
