"""Networks, and parameters as one flat vector."""
