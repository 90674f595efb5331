"""Files: results, checkpoints, provenance."""
