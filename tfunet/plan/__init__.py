"""How to train a run: its layouts, what each is predicted to take, and which is best."""
