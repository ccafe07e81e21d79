"""Times a step, to plan with measured costs."""
