"""A small network that is fitted, and support that swaps all that lowers its peak."""

import keras
from faulty import batches, compiled

from tfunet.swap import LargeModelSupport


def support(folder=None, **options):
    """Return support that swaps all that lowers the peak, to a folder if one is given."""
    disk = {} if folder is None else {"host": 0, "disk": folder}
    return LargeModelSupport(
        0,
        **{
            "weights": "none",
            "threshold_bytes": 2**18,
            "allowed": ["swap"],
            "verbose": 0,
            **disk,
            **options,
        },
    )


def fitted(callbacks, epochs=1):
    model = compiled()
    image, mask = batches()
    losses = []
    keep = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: losses.append(logs["loss"])
    )
    model.fit(
        image,
        mask,
        batch_size=2,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[*callbacks, keep],
    )
    return model, losses
