"""A script whose processes join each other: each says what it knows, once all have been here."""

JOINS = """
import os, sys
import numpy as np
from tfunet.fit.joined import join, leave
joined = join()
topology = joined.backend.start()
joined.begin("step 1", 1)
total = joined.backend.sum(np.array([topology.process_index + 1.0]))[0]
leave()
said = f"{joined.backend.name} {topology.process_index} of {topology.num_replicas}: {total}"
os.write(1, f"{said}\\n".encode())  # At once: lines of processes do not mix.
"""
