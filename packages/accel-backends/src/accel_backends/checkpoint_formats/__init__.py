"""How the states of models and optimizers lie in the files of a checkpoint."""
