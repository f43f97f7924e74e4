"""Files that hold weights: one module per format, each with a writer and a reader."""
