"""Who does what: one straight loop per role."""
