"""The parts of the training loop in `tfunet.loop`."""
