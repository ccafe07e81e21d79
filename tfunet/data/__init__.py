"""Data sets: where their cases come from, and how samples are made. Imports no TensorFlow."""

DATASETS = {
    "cells": "tfunet.data.generated.phantoms:cells",
    "tumours": "tfunet.data.generated.phantoms:tumours",
    "fractals": "tfunet.data.generated.phantoms:fractals",
    "universes": "tfunet.data.generated.phantoms:universes",
    "folder": "tfunet.data.layouts.folder:open_folder",
    "msd": "tfunet.data.layouts.dataset_json:open_msd",
    "nnunet": "tfunet.data.layouts.dataset_json:open_nnunet",
    "annotations": "tfunet.data.layouts.annotated:open_annotated",
    "csv": "tfunet.data.layouts.csv_pairs:open_csv",
    "tfrecord": "tfunet.data.layouts.tfrecord:open_tfrecord",
    "packed": "tfunet.data.layouts.packed:open_packed",
}
