"""The table of models. Importing it imports no TensorFlow."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MODELS = {
    "unet": "tfunet.models.unet:build",
    "isensee": "tfunet.models.isensee:build",
    "isensee_3dunetcnn": "tfunet.models.presets:isensee_3dunetcnn",
    "ronneberger2d": "tfunet.models.presets:ronneberger2d",
    "cicek3d": "tfunet.models.presets:cicek3d",
    "summit_5_2": "tfunet.models.presets:summit_5_2",
    "summit_5_5": "tfunet.models.presets:summit_5_5",
    "summit_6_2": "tfunet.models.presets:summit_6_2",
    "summit_7_2": "tfunet.models.presets:summit_7_2",
    "nnunet2d": "tfunet.models.presets:nnunet2d",
    "nnunet3d": "tfunet.models.presets:nnunet3d",
    "cosmoflow": "tfunet.models.cosmoflow:build",
    "cosmoflow2018": "tfunet.models.cosmoflow:mathuriya2018",
    "cosmoflow2020": "tfunet.models.cosmoflow:oyama2020",
}

# Options that only training needs: a trained network is without what they add.
FOR_TRAINING = ("deep_supervision", "encoder_weights")


def trained_options(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that build a network for the weights that it was trained to."""
    left_out = FOR_TRAINING if name in MODELS else ()
    return {key: value for key, value in options.items() if key not in left_out}


@dataclass(frozen=True)
class Card:
    """What `tfunet models` says about a model."""

    dimensions: str
    summary: str
    citation: str


_SUMMIT = "Seal et al. 2020, Toward Large-Scale Image Segmentation on Summit"

CARDS = {
    "unet": Card(
        "2D, 3D",
        "U-Net with every option: filters, levels, normalization, residual, pretrained encoders",
        "Ronneberger et al. 2015, arXiv:1505.04597; Cicek et al. 2016, arXiv:1606.06650",
    ),
    "isensee": Card(
        "2D, 3D",
        "context and localization modules, segmentation layers of three levels summed",
        "Isensee et al. 2017, arXiv:1802.10508",
    ),
    "isensee_3dunetcnn": Card(
        "2D, 3D",
        "the same as 3DUnetCNN arranges it, the code of IBM's large-model case study",
        "github.com/ellisdg/3DUnetCNN, after Isensee et al. 2017",
    ),
    "ronneberger2d": Card(
        "2D", "the first U-Net, with same padding", "Ronneberger et al. 2015, arXiv:1505.04597"
    ),
    "cicek3d": Card(
        "3D", "the first 3D U-Net, with same padding", "Cicek et al. 2016, arXiv:1606.06650"
    ),
    "summit_5_2": Card("2D", "torchgpipe's U-Net, 5 poolings, 2 convolutions a level", _SUMMIT),
    "summit_5_5": Card("2D", "torchgpipe's U-Net, 5 poolings, 5 convolutions a level", _SUMMIT),
    "summit_6_2": Card("2D", "torchgpipe's U-Net, 6 poolings, 2 convolutions a level", _SUMMIT),
    "summit_7_2": Card("2D", "torchgpipe's U-Net, 7 poolings, 2 convolutions a level", _SUMMIT),
    "nnunet2d": Card(
        "2D",
        "nnU-Net's 2D network; deep supervision is an option",
        "Isensee et al. 2021, arXiv:1904.08128",
    ),
    "nnunet3d": Card(
        "3D",
        "nnU-Net's 3D network; deep supervision is an option",
        "Isensee et al. 2021, arXiv:1904.08128",
    ),
    "cosmoflow": Card(
        "3D",
        "numbers from a volume (no mask): the network of MLPerf HPC 1.0",
        "Mathuriya et al. 2018, arXiv:1808.04728; mlcommons/hpc",
    ),
    "cosmoflow2018": Card(
        "3D",
        "numbers from a volume of 128 cubed: the first CosmoFlow",
        "Mathuriya et al. 2018, arXiv:1808.04728",
    ),
    "cosmoflow2020": Card(
        "3D",
        "numbers from a volume of 128, 256 or 512 cubed, as LBANN splits it",
        "Oyama et al. 2020, arXiv:2007.12856",
    ),
}

# Image shape and classes of each model where none are given, as in docs/models.md.
EXAMPLES = {
    "unet": ((256, 256, 1), 2),
    "isensee": ((128, 128, 128, 4), 4),
    "isensee_3dunetcnn": ((128, 128, 128, 4), 4),
    "ronneberger2d": ((512, 512, 1), 2),
    "cicek3d": ((128, 128, 128, 3), 3),
    "summit_5_2": ((192, 192, 4), 1),
    "summit_5_5": ((192, 192, 4), 1),
    "summit_6_2": ((192, 192, 4), 1),
    "summit_7_2": ((256, 256, 4), 1),
    "nnunet2d": ((512, 512, 1), 2),
    "nnunet3d": ((128, 128, 128, 1), 3),
    "cosmoflow": ((128, 128, 128, 4), 4),
    "cosmoflow2018": ((128, 128, 128, 1), 3),
    "cosmoflow2020": ((512, 512, 512, 4), 4),
}


def list_models() -> str:
    """Return the models as text, a line for each: name, dimensions, summary, citation."""
    name_width = max(map(len, CARDS))
    summary_width = max(len(card.summary) for card in CARDS.values())
    lines = [
        f"{name:{name_width}}  {card.dimensions:6}  {card.summary:{summary_width}}  {card.citation}"
        for name, card in CARDS.items()
    ]
    return "\n".join(lines)
