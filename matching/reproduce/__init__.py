"""The papers' experiments, run by name: python -m matching.reproduce NAME."""
