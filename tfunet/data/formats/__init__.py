"""One module a file format, each with `stored(path)` and `decoded(path)`. No TensorFlow.

Those that can read a part of a file have `region(path)` too. Where a mask's labels are not what a
viewer shows, such as a palette's numbers, there are `stored_labels`, `decoded_labels` and
`region_labels`.
"""

FORMATS = {
    ".png": "tfunet.data.formats.pillow",
    ".jpg": "tfunet.data.formats.pillow",
    ".jpeg": "tfunet.data.formats.pillow",
    ".webp": "tfunet.data.formats.pillow",
    ".tif": "tfunet.data.formats.tiff",
    ".tiff": "tfunet.data.formats.tiff",
    ".nii": "tfunet.data.formats.nifti",
    ".nii.gz": "tfunet.data.formats.nifti",
    ".dcm": "tfunet.data.formats.dicom",
    "/": "tfunet.data.formats.dicom",  # A folder of slices.
    ".h5": "tfunet.data.formats.hdf5",
    ".hdf5": "tfunet.data.formats.hdf5",
    ".zarr": "tfunet.data.formats.zarr_store",
    ".npy": "tfunet.data.formats.npy",
}
