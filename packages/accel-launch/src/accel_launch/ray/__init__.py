"""Launching on Ray: the program that asks a cluster for actors, and what an actor does."""
