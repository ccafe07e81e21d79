"""One step of a run, taken its way and on one device, before it counts."""
