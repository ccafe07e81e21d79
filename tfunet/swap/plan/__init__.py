"""A plan, and what it would take: schedule, timeline, memory, costs. Pure."""
