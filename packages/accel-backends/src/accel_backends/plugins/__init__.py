"""Settings objects for parts of training that have many, one file per part."""
