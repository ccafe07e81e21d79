"""One sample over several devices: who has which part of it, and how layers run on parts."""
