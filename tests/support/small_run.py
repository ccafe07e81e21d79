"""The smallest run that has all that devices and backends can differ in."""

# Two epochs, a short last batch in the epoch, validation cases that two processes cannot share
# equally, normalisation over all replicas.
SMALL_RUN = {
    "model": "unet",
    # With more convolutions, roundings grow over the steps to some thousandths.
    "model_options": {
        "filters": 4,
        "levels": 1,
        "convolutions": 1,
        "normalization": "synchronized_batch",
    },
    "data": "cells",
    "data_options": {"num_cases": 26, "size": 32},
    "validation_share": 0.2,
    "global_batch": 4,
    "epochs": 2,
    # Not Adam, whose steps hardly depend on the size of the gradients.
    "optimizer": "sgd",
    "optimizer_options": {"momentum": 0.9, "global_clipnorm": 1.0},
    "learning_rate": 0.05,
    "checkpoint_steps": 2,
    "cores_per_replica": 1,
}
