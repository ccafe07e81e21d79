"""Data sets: where cases come from. Imports no TensorFlow."""

DATASETS = {
    "cells": "tfunet.data.phantoms:cells",
    "tumours": "tfunet.data.phantoms:tumours",
    "folder": "tfunet.data.folder:open_folder",
    "msd": "tfunet.data.layouts:open_msd",
    "nnunet": "tfunet.data.layouts:open_nnunet",
    "csv": "tfunet.data.layouts:open_csv",
}
