"""The states of DeepSpeed engines in checkpoints: whole, or in the files that DeepSpeed itself writes."""
