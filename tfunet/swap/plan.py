"""What large-model support does with each tensor that the backward pass needs. Pure."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal

Decision = Literal["keep", "recompute", "swap"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is done with each tensor, by its name in the graph; what is not named is kept.

    Args:
        decisions: "swap" or "recompute" for a tensor's name.
        budget_bytes: Device memory that the plan was made for.
        peak_bytes: Most device memory in use at once, predicted.
        unlimited_peak_bytes: The same with every tensor kept, predicted.
        floor_bytes: The largest working set of one op, which no plan can pass.
        floor_op: That op's name.
        host_bytes: Host memory that swapped tensors take.
        extra_seconds: Copies and repeated ops of one step, predicted.
    """

    decisions: Mapping[str, Decision] = field(default_factory=dict)
    budget_bytes: int = 0
    peak_bytes: int = 0
    unlimited_peak_bytes: int = 0
    floor_bytes: int = 0
    floor_op: str = ""
    host_bytes: int = 0
    extra_seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "Plan":
        return cls(**json.loads(text))

    def count(self, decision: Decision) -> int:
        return sum(one == decision for one in self.decisions.values())
