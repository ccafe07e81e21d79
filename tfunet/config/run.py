"""What one run does: a frozen dataclass, checked when made. Imports no TensorFlow."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tfunet.config import data_keys, memory_keys, placement_keys, run_keys, tournament
from tfunet.config.augmentation import read_augmentation
from tfunet.config.case_metrics import keras_metrics
from tfunet.files.typed import FieldError
from tfunet.geometry.parts import check_split

SCHEMA_VERSION = 1
# A key that earlier versions had. A finished run can be read whatever it was.
GONE = ("swap_compression",)


# The last base comes first in a dataclass: the model's keys lead config.json.
@dataclass(frozen=True, kw_only=True)
class RunConfig(
    tournament.TournamentKeys,
    run_keys.ObservationKeys,
    run_keys.ReliabilityKeys,
    memory_keys.MemoryKeys,
    run_keys.ArithmeticKeys,
    run_keys.EvaluationKeys,
    run_keys.OptimizationKeys,
    placement_keys.PlacementKeys,
    data_keys.InputKeys,
    data_keys.SplitKeys,
    data_keys.DataKeys,
    run_keys.ModelKeys,
):
    """One run, fully described.

    Two runs with equal fields compute the same thing.
    """

    def _check(self) -> None:
        if self.elastic and self.scale_learning_rate:
            raise ValueError(
                "elastic and scale_learning_rate exclude each other: the learning rate would "
                "change with the number of replicas. Give learning_rate for the global batch "
                "instead."
            )
        if self.elastic and math.prod(self.split) > 1:
            raise ValueError(
                "elastic and split exclude each other: without one process, the others of its "
                "replica have no whole sample. Leave out one of them."
            )
        if self.xla and math.prod(self.split) > 1:
            raise ValueError(
                "xla and split exclude each other: the exchange between devices cannot be "
                "compiled. Leave out one of them."
            )
        if self.has_regions and keras_metrics(self.metrics):
            raise ValueError(
                f"outputs = 'regions' cannot be combined with the metric "
                f"{keras_metrics(self.metrics)[0]!r}: metrics of Keras compare one label of a "
                "pixel with its logits. Name metrics of whole cases, such as 'dice' and 'hd95'."
            )
        if self.zero:
            self._check_zero_alone()
        if self.tournament:
            self._check_tournament()
        if self.stages > 1:
            self._check_stages()
        if self.tiling:
            self._check_tiling()
        if self.pipeline == "dali":
            self._check_dali()
        if ":" not in self.model:  # A user's own model may give options another meaning.
            self._check_model_options()
        if self.patch is not None:
            check_split(self.split, self.patch)
            check_split(self.tiling, self.patch, "tiling")
        if self.swap is not None and self.xla:
            raise ValueError(
                "swap and xla exclude each other: XLA compiles the step as a whole, so no tensor "
                "can be moved out of it. Leave out one of them."
            )

    def _check_zero_alone(self) -> None:
        """Raise ValueError for what states that are shared out cannot be combined with."""
        if self.swap_weights in ("state", "weights"):
            raise ValueError(
                f"zero = {self.zero} cannot be combined with swap_weights = "
                f"{json.dumps(self.swap_weights)}: what devices share out does not leave them. For "
                "states in host memory leave out zero; to share them out leave out swap_weights."
            )
        unable = {
            "xla": (self.xla, "the exchange between devices cannot be compiled"),
            "tournament": (bool(self.tournament), "trainers exchange whole states of optimizers"),
        }
        for key, (is_asked, why) in unable.items():
            if is_asked:
                raise ValueError(
                    f"zero = {self.zero} cannot be combined with {key}: {why}. Leave out one of "
                    "them."
                )

    def _check_tournament(self) -> None:
        if self.elastic:
            raise ValueError(
                "elastic and tournament exclude each other: a trainer that lost a process is "
                "started again, and its partners go on. Leave out elastic."
            )
        read = tournament.read_tournament(self.tournament)
        others = [] if read is None else list(tournament.first_values(read, vars(self)))
        if others and self.swap is not None:
            raise ValueError(
                f"mutate.{others[0]} and swap exclude each other: the step is made anew for "
                "another value, and large-model support would have to plan it again. Leave out "
                "one of them."
            )
        has_schedule = self.warmup_epochs or self.decay_epochs or self.learning_rate_schedule
        if has_schedule and "learning_rate" in self.tournament.get("mutate", {}):
            raise ValueError(
                "mutate.learning_rate excludes warmup_epochs, decay_epochs and "
                "learning_rate_schedule: a schedule sets the learning rate of every step. Leave "
                "out one of them."
            )

    def _check_stages(self) -> None:
        """Raise ValueError for what a network in stages cannot be trained with."""
        unable = {
            "swap": self.swap is not None and math.prod(self.split) > 1,
            "xla": self.xla,
            "elastic": self.elastic,
            "accumulation": self.accumulation > 1,
            "encoder_frozen_epochs": self.encoder_frozen_epochs > 0,
            "tournament": bool(self.tournament),
            "precision": self.precision == "mixed_float16",
        }
        instead = {
            "swap": "plans of stages are not made for split samples, which exchange within a pass",
            "accumulation": "micro_batches cuts the batch into parts already",
            "elastic": "without one process, the network of its replica is not whole",
            "precision": "the loss scale of mixed_float16 is one number for all stages",
        }
        for key, is_asked in unable.items():
            if is_asked:
                why = instead.get(key, "it is not built for stages yet")
                raise ValueError(
                    f"stages={self.stages} cannot be combined with {key} = "
                    f"{json.dumps(getattr(self, key))}: {why}. Leave out one of them."
                )
        for option in ("use_ema", "loss_scale_factor"):
            if self.optimizer_options.get(option):
                raise ValueError(
                    f"stages={self.stages} cannot be combined with optimizer_options.{option}: an "
                    "optimizer has the variables of one stage only. Leave out one of them."
                )

    def _check_tiling(self) -> None:
        """Raise ValueError for what a step on tiles cannot be combined with."""
        unable = {
            "batch_norm": self.batch_norm == "deferred",
            "swap": self.swap is not None,
            "xla": self.xla,
            "accumulation": self.accumulation > 1,
            "pipeline": self.pipeline == "device",
        }
        instead = {
            "xla": "tiles have their own parts in different places of their windows",
            "accumulation": "each tile is a pass of its own already",
            "pipeline": "a tile is augmented where it is read",
            "batch_norm": "each tile has moving statistics of its own",
        }
        for key, is_asked in unable.items():
            if is_asked:
                raise ValueError(
                    f"tiling = {list(self.tiling)} cannot be combined with {key} = "
                    f"{json.dumps(getattr(self, key))}: "
                    f"{instead.get(key, 'it is not built for tiles yet')}. Leave out one of them."
                )
        needy = read_augmentation(self.augmentation).of_whole_samples
        if needy:
            raise ValueError(
                f"tiling = {list(self.tiling)} reads samples tile by tile, and "
                f"augmentation.{needy[0]} needs whole samples. Leave it out: with tiling, flips "
                "and brightness are possible."
            )

    def _check_dali(self) -> None:
        """Raise ValueError for what takes other samples than whole ones of each replica."""
        parts = {"split": math.prod(self.split) > 1, "stages": self.stages > 1}
        for key, is_asked in {**parts, "tiling": bool(self.tiling)}.items():
            if is_asked:
                raise ValueError(
                    f"pipeline = 'dali' cannot be combined with {key} = "
                    f"{json.dumps(getattr(self, key))}: DALI makes whole samples. Leave out one of "
                    "them."
                )

    def _check_model_options(self) -> None:
        """Raise ValueError for options of tfunet's models that parts cannot be combined with."""
        if self.model_options.get("deep_supervision"):
            parts = {"split": math.prod(self.split) > 1, "stages": self.stages > 1}
            for key, is_asked in {**parts, "tiling": bool(self.tiling)}.items():
                if is_asked:
                    raise ValueError(
                        f"model_options.deep_supervision cannot be combined with {key} = "
                        f"{json.dumps(getattr(self, key))}: losses of lower resolutions are not "
                        "built for parts of a sample or of a network. Leave out one of them."
                    )
        if self.tiling and self.model_options.get("encoder"):
            raise ValueError(
                f"model_options.encoder cannot be combined with tiling = {list(self.tiling)}: the "
                "halo of a network inside the model is not known. Leave out one of them, or use "
                "split."
            )

    def to_json(self) -> str:
        """Return the fully resolved configuration as JSON."""
        return json.dumps(self.values(), indent=1)

    def values(self) -> dict[str, Any]:
        """Return all keys, without those of later versions that have their defaults."""
        values = asdict(self)
        for key in ("tournament", "tiling", "share_cores", "zero", "layout"):
            if not values[key]:
                del values[key]
        if values["prove"]:
            del values["prove"]
        # As before there was a choice.
        for key, only in (("batch_norm", "micro_batch"), ("outputs", "classes")):
            if values[key] == only:
                del values[key]
        return values


def from_json(text: str) -> RunConfig:
    """Return the configuration that `RunConfig.to_json` wrote."""
    return config_of_record(json.loads(text))


def config_of_record(recorded: Mapping[str, Any]) -> RunConfig:
    """Return the configuration that a record holds; raise FieldError for a wrong key or type."""
    values = {key: value for key, value in recorded.items() if key not in GONE}
    if unknown := [name for name in values if name not in RunConfig.__dataclass_fields__]:
        raise FieldError(
            f"{unknown[0]!r:.60} is no key of this version of tfunet. Use the version that wrote it"
        )
    try:
        return RunConfig(**values)
    except (TypeError, ValueError, OverflowError) as error:
        raise FieldError(str(error)) from error
