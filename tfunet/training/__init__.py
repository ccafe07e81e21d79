"""The parts of the training loop of `tfunet.train`."""
