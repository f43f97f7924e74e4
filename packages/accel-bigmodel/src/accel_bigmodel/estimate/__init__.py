"""How much memory a model will take, before anything of it is loaded."""
