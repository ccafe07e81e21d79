"""Asks the processes of a run on this machine to save after a step, and to end. No TensorFlow.

    supervisor      chief, after step k             the others, after step k + 1
    asks ---------> "k + 1 is the last step" -----> it was the last step
                    takes step k + 1                save together, and end

No process can finish step k + 1 before the chief starts it, because the chief's gradients are
missing. So all of them know in time. They share a page of memory, and each number in it has one
writer, so that no lock is needed.
"""

import mmap
import os
from collections.abc import MutableMapping
from typing import final

VARIABLE = "TFUNET_STOP"  # The shared memory, by the number of its descriptor.
# A sweep sets it for its trials: nothing is saved of those that it ends, since it begins them anew.
TRIAL_VARIABLE = "TFUNET_TRIAL"
NUMBER_BYTES = 8
# The numbers, by place. The supervisor writes the first one, the chief the others.
ASKED, TAKEN, LAST = range(3)


@final
class StopRequest:
    """The shared memory, in the supervisor or in a process of the run."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 3 * NUMBER_BYTES)
        # A whole number that lies at a multiple of its size is written at once.
        self._numbers = memoryview(self._memory).cast("Q")

    @classmethod
    def new(cls) -> "StopRequest":
        """Return one that asks for nothing."""
        descriptor = os.memfd_create("tfunet-stop")
        os.ftruncate(descriptor, 3 * NUMBER_BYTES)
        return cls(descriptor)

    def ask(self) -> None:
        """Ask the run to save and end, as soon as its processes can do so together."""
        self._numbers[ASKED] = 1

    @property
    def is_asked(self) -> bool:
        """Whether the run was asked to end."""
        return bool(self._numbers[ASKED])

    @property
    def has_steps(self) -> bool:
        """Whether the run has taken a step since it was started."""
        return bool(self._numbers[TAKEN])

    @property
    def last_step(self) -> int:
        """The step after which the run ends, as it was asked to; 0 if that is not known yet."""
        return int(self._numbers[LAST])

    def stops_after(self, step: int, *, is_chief: bool, is_alone: bool) -> bool:
        """Whether all processes stop after `step`; all call it after each step."""
        if is_chief:
            self._numbers[TAKEN] = step
            if self.is_asked and not self.last_step:
                self._numbers[LAST] = step if is_alone else step + 1
        return 0 < self.last_step <= step

    def close(self) -> None:
        """Give the memory back."""
        self._numbers.release()
        self._memory.close()
        os.close(self.descriptor)


def stop_request(environment: MutableMapping[str, str]) -> StopRequest | None:
    """Return the request of the supervisor; None if no supervisor started this process."""
    given = environment.pop(VARIABLE, "")
    if not given.isdecimal():
        return None
    descriptor = int(given)
    os.set_inheritable(descriptor, False)
    return StopRequest(descriptor)
