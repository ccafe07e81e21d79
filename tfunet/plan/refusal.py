"""Why a run cannot have a layout: the checks that the run itself would make, all in one place."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import final

from tfunet.backend import check_callbacks, facts_of, num_processes
from tfunet.config.run import RunConfig
from tfunet.geometry.parts import check_split
from tfunet.machine.cores import share_cores
from tfunet.plan.facts import RunFacts
from tfunet.plan.layout import Layout
from tfunet.plan.machine import Machine
from tfunet.training.stage_cut import check_graph, check_swap
from tfunet.training.tiling import cut_of


@final
@dataclass(frozen=True)
class Refusals:
    """Says why layouts of a run are refused.

    Args:
        config: The run.
        missing: By backend, why it cannot be used.
    """

    config: RunConfig
    facts: RunFacts
    machine: Machine
    missing: dict[str, str] = field(default_factory=dict)

    def reason(self, layout: Layout) -> str | None:
        """Return why the run cannot be trained so, or would not have the same result; or None."""
        try:
            self._check(layout)
        except ValueError as error:
            return str(error)
        return None

    def _check(self, layout: Layout) -> None:
        facts, machine = self.facts, self.machine
        if layout.backend in self.missing:
            raise ValueError(self.missing[layout.backend])
        for has_it, why in (
            (layout.stages > 1, facts.why_no_stages),
            (layout.tiling, facts.why_no_tiles),
            (layout.parts > 1, facts.why_no_split),
        ):
            if has_it and why:
                raise ValueError(why)
        config = layout.applied(self.config)
        num_processes(config)
        check_callbacks(config)
        if facts_of(layout.backend).one_process and layout.num_devices > machine.devices:
            raise ValueError(
                f"The backend {layout.backend!r} runs on one machine, and {layout.num_devices} "
                "devices are on several. Choose multiworker or horovod."
            )
        if machine.is_cpu:
            cores: Sequence[int] = range(machine.cores)
            share_cores(
                cores,
                config.num_replicas,
                num_processes(config),
                config.cores_per_replica,
                config.split,
                config.stages,
                may_share=config.share_cores,
            )
        check_split(layout.split, facts.patch)
        if layout.tiling:
            self._check_tiles(config)
        if layout.stages > 1:
            check_graph(facts.graph, config)
            if layout.swap is not None:
                check_swap(config)
        self._check_same_result(layout)

    def _check_tiles(self, config: RunConfig) -> None:
        facts = self.facts
        check_split(config.tiling, facts.patch, "tiling")
        if facts.tiled_patch != facts.patch and not self.config.tiling:
            raise ValueError(
                f"With tiling the samples would be whole images of {list(facts.tiled_patch)}. For "
                f"the same samples set patch = {list(facts.patch)}."
            )
        cut_of(config, facts.patch, facts.halo, facts.alignment)

    def _check_same_result(self, layout: Layout) -> None:
        before = Layout.of(self.config)
        if self.config.scale_learning_rate and layout.num_replicas != before.num_replicas:
            raise ValueError(
                "scale_learning_rate makes the learning rate another with another number of "
                "replicas. Leave it out, and give learning_rate for the global batch."
            )
        counts = [self._samples_of_pass(one) for one in (before, layout)]
        if self.facts.by_batch and counts[0] != counts[1]:
            raise ValueError(
                f"The layer {self.facts.by_batch[0]!r} normalizes by the samples of a pass: with "
                f"{counts[1]:g} instead of {counts[0]:g} the result is another. Choose instance or "
                "group normalization."
            )

    def _samples_of_pass(self, layout: Layout) -> float:
        passes = layout.accumulation * layout.micro_batches
        return self.facts.global_samples / layout.num_replicas / passes
