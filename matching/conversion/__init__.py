"""Checkpoints of the papers' authors, one file for each of their repositories."""
