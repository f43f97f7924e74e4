"""The number formats that the forward pass can run in, one file per member."""
