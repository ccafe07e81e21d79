"""What the machine has: cores, memory, devices, energy counters, installed software."""
