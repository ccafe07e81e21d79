"""What a process did when: spans, marks inside of a traced step, profiles."""
