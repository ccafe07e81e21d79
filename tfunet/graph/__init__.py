"""The compiler of training steps: reads a traced step, edits it, and times its operations alone."""
