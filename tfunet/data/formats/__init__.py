"""One module a file format, each with `stored(path)` and `decoded(path)`. No TensorFlow.

What can read a part of a file has `region(path)` too. Where a mask's labels are not what a viewer
shows, such as a palette's numbers, all of them take `labels`.
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
    "/": "tfunet.data.formats.slices",  # A folder of slices.
    ".h5": "tfunet.data.formats.hdf5",
    ".hdf5": "tfunet.data.formats.hdf5",
    ".zarr": "tfunet.data.formats.zarr_store",
    ".npy": "tfunet.data.formats.npy",
    ".mhd": "tfunet.data.formats.itk",
    ".mha": "tfunet.data.formats.itk",
    ".nrrd": "tfunet.data.formats.itk",
    ".nhdr": "tfunet.data.formats.itk",
}
# Files of outlines, which are read as masks.
OUTLINES = dict.fromkeys((".json", ".geojson", ".roi", ".zip"), "tfunet.data.formats.annotations")

# Features of records, which are read as images and masks.
RECORDS = {"@": "tfunet.data.formats.tfrecord"}

# Kinds of files: their suffixes, the position of their signature, and its possible values.
SIGNATURES = {
    "PNG": ((".png",), 0, (b"\x89PNG",)),
    "JPEG": ((".jpg", ".jpeg"), 0, (b"\xff\xd8\xff",)),
    "WebP": ((".webp",), 8, (b"WEBP",)),
    "TIFF": ((".tif", ".tiff"), 0, (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")),
    "gzip": ((".nii.gz",), 0, (b"\x1f\x8b",)),
    "NIfTI": ((".nii",), 344, (b"n+1\0", b"ni1\0")),
    "NIfTI-2": ((".nii",), 4, (b"n+2\0", b"ni2\0")),
    "HDF5": ((".h5", ".hdf5"), 0, (b"\x89HDF\r\n\x1a\n",)),
    "NRRD": ((".nrrd", ".nhdr"), 0, (b"NRRD",)),
    "NumPy": ((".npy",), 0, (b"\x93NUMPY",)),
    "DICOM": ((".dcm", "/"), 128, (b"DICM",)),
}
