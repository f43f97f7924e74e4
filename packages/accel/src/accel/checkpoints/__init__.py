"""What a checkpoint of a run is made of, and is loaded into."""
