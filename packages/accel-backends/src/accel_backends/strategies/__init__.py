"""The ways to train a model on one or many devices, one file per member."""
