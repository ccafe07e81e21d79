"""The processes of a run: their indices, how they connect, how a hanging one is noticed."""
