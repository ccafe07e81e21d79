"""The processes of a run: which one this is, how they meet, and how one that hangs is noticed."""
