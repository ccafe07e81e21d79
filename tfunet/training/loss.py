"""The loss of a run, and what its model's output stands for: the one place that makes them."""

import keras

from tfunet.data.task import Task
from tfunet.learning import losses
from tfunet.learning.outputs import ClassOutputs, Outputs, RegionOutputs
from tfunet.learning.region_loss import RegionLoss


def make_loss(task: Task) -> keras.Loss:
    """Return the loss that a configuration names, with its options; of regions, their mean."""
    config, source = task.config, task.source
    loss = losses.make(config.loss, config.loss_options)
    if not config.has_regions:
        return loss
    return RegionLoss(loss, list(source.regions.values()), source.num_classes)


def outputs_of(task: Task) -> Outputs:
    """Return what the channels of the model's output stand for, where there are masks."""
    if task.config.has_regions:
        return RegionOutputs(regions=task.source.regions)
    return ClassOutputs(num_classes=task.source.num_classes)
