"""Conformance suites that anyone can run on an environment of their own."""

from hpcrl.testing.env_checks import Finding
from hpcrl.testing.env_suite import EnvCheckError, EnvReport, check_command, check_env

__all__ = ["EnvCheckError", "EnvReport", "Finding", "check_command", "check_env"]
