"""The questions, by topic, in the order in which they are asked."""
