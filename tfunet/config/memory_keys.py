"""The keys of a run that limit its memory. Imports no TensorFlow."""

from dataclasses import dataclass, fields

from tfunet.config import amount
from tfunet.config.section import Section, fixed, free
from tfunet.config.words import check_known

# What may leave the device of weights and states (`tfunet.state.away`).
LEAVING = ("auto", "none", "state", "weights")


@dataclass(frozen=True, kw_only=True)
class MemoryKeys(Section):
    """The memory that a run may take, and where it puts tensors that do not fit.

    Args:
        swap: Limit of each replica's device memory: "auto" (the memory of the device), an
            amount ("12GiB") or a share ("0.5"). Tensors that do not fit are moved to host memory
            or disk, recomputed, or split; in stages not split. By default, and with "none",
            large-model support is off.
        swap_host: Limit of the host memory for each process's swapped tensors, such as "64GiB".
            By default there is no limit.
        swap_disk: Folder for swapped tensors beyond `swap_host`, on a disk of each machine. They
            are deleted when the process ends. Each process expands `~` and `$VARIABLES`.
        swap_disk_size: Limit of the disk space for each process's swapped tensors, such as
            "500GiB". By default there is no limit. A disk that is too small ends the run before
            its first step.
        swap_weights: What may leave beside tensors: "state" (the states of optimizers, and
            gradients; the host updates the weights), "weights" (these, too: each comes to the
            device to be read), "none", or "auto": what leaves a quarter of `swap` to activations;
            with `zero` nothing. By default "auto".
        cpu_memory: Limit of TensorFlow's CPU memory in each process, such as "400MiB". With it
            you can try large-model support on a CPU, as if on a small device. By default there
            is no limit.
        gpu_memory: Limit of TensorFlow's memory on each GPU, such as "16GiB". It is taken at once,
            and CUDA itself takes up to 1 GiB more. By default a run takes what it needs, up to all.
    """

    swap: str | None = fixed(None)
    # Free: a run whose disk or memory was too small goes on with more.
    swap_host: str | None = free(None)
    swap_disk: str | None = free(None)
    swap_disk_size: str | None = free(None)
    swap_weights: str | None = free(None)
    cpu_memory: str | None = free(None)
    gpu_memory: str | None = free(None)

    def _check(self) -> None:
        if self.swap_weights is not None:
            check_known("swap_weights", self.swap_weights, LEAVING)
        if self.swap == "none":
            # The other keys too: a study then has the same trials without large-model support.
            for name in SWAP_KEYS:
                self._set(name, None)
        for name in SWAP_KEYS:
            if getattr(self, name) is not None and self.swap is None:
                raise ValueError(f"{name} needs swap. Give swap too, such as swap = 'auto'.")
        for name in ("swap_host", "swap_disk_size"):
            if getattr(self, name) is not None:
                amount.in_bytes(name, getattr(self, name))
        if self.swap_disk is not None and self.swap_host is None:
            raise ValueError(
                "swap_disk needs swap_host: the disk takes only what host memory does not. Give "
                "swap_host too, such as '64GiB', or '0' to put all swapped tensors on the disk."
            )
        if self.swap_disk == "":
            raise ValueError("swap_disk is empty. Give a folder, or '.' for the current one.")
        if self.swap_disk_size is not None and self.swap_disk is None:
            raise ValueError("swap_disk_size needs swap_disk. Name the folder too.")
        if self.swap is not None:
            amount.parse(self.swap)
        if self.cpu_memory is not None:
            amount.whole_mib(self.cpu_memory)
        if self.gpu_memory is not None:
            amount.whole_mib(self.gpu_memory, key="gpu_memory")
        if self.cpu_memory is not None and self.gpu_memory is not None:
            raise ValueError(
                "cpu_memory is for a run on CPUs, and gpu_memory for one on GPUs. Give one of them."
            )


# The keys of large-model support; the first one asks for it.
SWAP_KEYS = tuple(key.name for key in fields(MemoryKeys) if key.name.startswith("swap"))
