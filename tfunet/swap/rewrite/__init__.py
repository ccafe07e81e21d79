"""Changes the graph of a step so that it follows a plan."""
