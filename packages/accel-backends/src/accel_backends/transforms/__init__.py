"""What is done to a model before it is wrapped for parallel work, in one fixed order."""
