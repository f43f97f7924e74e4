"""Training by DeepSpeed's engine; importing this folder's modules does not import DeepSpeed."""
