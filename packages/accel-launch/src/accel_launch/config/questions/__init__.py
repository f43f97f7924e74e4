"""The questions, one file for each topic: `QUESTIONS`, in the order in which they are asked."""
