"""The systems of the papers as pure modules of tensors: one file per system."""
