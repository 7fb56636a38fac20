"""How a model works on a task: the protocol, and Leaf."""
