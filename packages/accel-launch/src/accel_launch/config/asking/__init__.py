"""Ways to ask a person a question: a menu on a terminal, plain lines where input or output is piped."""
