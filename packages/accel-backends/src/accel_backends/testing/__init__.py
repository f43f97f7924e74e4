"""What a strategy is tested with: small models that are hard to spread over ranks."""
