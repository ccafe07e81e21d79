"""Files that are complete or missing, and tables that grow by lines."""
