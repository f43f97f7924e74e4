"""Pipeline stages of an unmodified model: training and inference in which each rank runs some of its blocks."""
