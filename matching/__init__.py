"""The models, their data, training and evaluation."""
