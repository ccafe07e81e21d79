"""A cap on the CPU memory of TensorFlow. Imports no TensorFlow."""

from collections.abc import Mapping

from tfunet.config.amount import whole_mib

ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
# TensorFlow reads these at its first allocation.
VARIABLES = (ALLOCATOR, LIMIT)


def cap_variables(amount: str | None) -> dict[str, str]:
    """Return the environment variables that set the cap; empty for no cap."""
    return {} if amount is None else {ALLOCATOR: "true", LIMIT: str(whole_mib(amount))}


def check_cap(amount: str | None, environment: Mapping[str, str], *, on_gpu: bool) -> None:
    """Raise ValueError if a run asks for a cap that its process does not have."""
    if amount is None:
        return
    if on_gpu:
        raise ValueError(
            f"cpu_memory={amount!r} caps CPU memory, and this run trains on a GPU. Leave it "
            "out, or hide the GPUs with CUDA_VISIBLE_DEVICES= to train on the CPU."
        )
    needed = cap_variables(amount)
    if any(environment.get(name) != value for name, value in needed.items()):
        settings = " ".join(f"{name}={value}" for name, value in needed.items())
        raise ValueError(
            f"cpu_memory={amount!r} must be set when the process starts. Use `tfunet train`, or "
            f"start the process with {settings}."
        )
