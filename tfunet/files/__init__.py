"""Files that are whole or not there, and tables that grow by lines."""
