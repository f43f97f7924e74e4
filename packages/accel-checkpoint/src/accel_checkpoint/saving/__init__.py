"""Write a checkpoint such that it is there whole or not at all."""
