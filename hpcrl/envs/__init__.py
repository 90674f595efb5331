"""Environments behind one batched protocol."""
