"""A cap on what TensorFlow takes of a CPU's memory. Imports no TensorFlow."""

from collections.abc import Mapping

from tfunet.config.amount import whole_mib

ALLOCATOR = "TF_CPU_ALLOCATOR_USE_BFC"
LIMIT = "TF_CPU_BFC_MEM_LIMIT_IN_MB"
# What TensorFlow reads when it first allocates.
VARIABLES = (ALLOCATOR, LIMIT)


def cap_variables(amount: str | None) -> dict[str, str]:
    """Return the environment under which TensorFlow has the cap; empty for none."""
    return {} if amount is None else {ALLOCATOR: "true", LIMIT: str(whole_mib(amount))}


def check_cap(amount: str | None, environment: Mapping[str, str], *, on_gpu: bool) -> None:
    """Raise ValueError where a run has asked for a cap that its process does not have.

    Args:
        amount: What the run asks for.
        environment: Of the process.
        on_gpu: Whether it trains on a GPU.
    """
    if amount is None:
        return
    if on_gpu:
        raise ValueError(
            f"cpu_memory={amount!r} caps the memory of CPUs, and this run trains on a GPU. Leave "
            "it out, or hide the GPUs with CUDA_VISIBLE_DEVICES= to use the CPU."
        )
    wanted = cap_variables(amount)
    if any(environment.get(name) != value for name, value in wanted.items()):
        words = " ".join(f"{name}={value}" for name, value in wanted.items())
        raise ValueError(
            f"cpu_memory={amount!r} must be known when the process starts. Use `tfunet train`, or "
            f"start it with {words}."
        )
