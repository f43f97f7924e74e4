"""Settings of DeepSpeed: the plugin, DeepSpeed's own config, and the rules that fill it."""
