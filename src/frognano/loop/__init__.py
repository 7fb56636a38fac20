"""π0 to πn: the recipe, the session, iterations."""
