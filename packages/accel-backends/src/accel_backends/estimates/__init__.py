"""What a step of training needs on each rank, computed from a plan: memory, and what ranks send each other."""
