"""The input pipelines that pipeline.py compares, each in a process of its own.

    python benchmarks/pipeline_ways.py WAY TASK.json

Every way cycles through the same list of samples, which ours has drawn: case, place of the crop,
flips and the map of the rotation. It answers lines on standard input with lines of JSON:
`check COUNT PATH` writes the first samples, `first` times the first epoch from nothing, `window
WARM TIMED` times batches after so many that do not count, and `memory` tells its bytes.
"""

import gc
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil

BATCH = 16


class Task:
    """What every way does: the files, the samples, and the shape that comes out.

    Args:
        path: JSON with `images`, `masks` (files by case), `size` to resample to (or null),
            `patch`, `source` (arguments of open_folder) and `rows`, an .npz of samples.
    """

    def __init__(self, path):
        table = json.loads(Path(path).read_text())
        self.images, self.masks = table["images"], table["masks"]
        self.size, self.patch = table["size"], tuple(table["patch"])
        self.source = table["source"]
        self.rank = len(self.patch)
        rows = np.load(table["rows"])
        self.case, self.start = rows["case"], rows["start"]
        self.flips, self.matrix = rows["flips"], rows["matrix"]
        self.epoch_samples = table["epoch_samples"]

    def __len__(self):
        return len(self.case)


# --- Decoding and transforming in Python, for the loaders that run Python in processes ------------


def decode(task, case):
    """Return image float32 and mask uint8, preprocessed as ours are."""
    import cv2

    cv2.setNumThreads(0)
    if task.rank == 2:
        image = cv2.imread(task.images[case], cv2.IMREAD_GRAYSCALE).astype(np.float32)
        mask = (cv2.imread(task.masks[case], cv2.IMREAD_UNCHANGED) > 0).astype(np.uint8)
        size = tuple(task.size[::-1])
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA)
        mask = cv2.resize(mask, size, interpolation=cv2.INTER_NEAREST)
    else:
        import nibabel

        image = np.asarray(nibabel.load(task.images[case]).dataobj, np.float32)
        mask = np.asarray(nibabel.load(task.masks[case]).dataobj).astype(np.uint8)
    image = (image - image.mean()) / image.std()
    return padded(image, task.patch), padded(mask, task.patch)


def padded(array, patch):
    """Centre an array in zeros where it is smaller than the patch."""
    missing = [max(size - length, 0) for length, size in zip(array.shape, patch, strict=True)]
    if not any(missing):
        return array
    return np.pad(array, [(pixels // 2, pixels - pixels // 2) for pixels in missing])


def cut(task, row, *arrays):
    """Crop and flip."""
    corner = zip(task.start[row], task.patch, strict=True)
    inside = tuple(slice(start, start + size) for start, size in corner)
    flipped = tuple(slice(None, None, -1 if flip else 1) for flip in task.flips[row])
    return [np.ascontiguousarray(array[inside][flipped]) for array in arrays]


def sample(task, row):
    """Return one sample, made with OpenCV (2D) or SciPy (3D)."""
    image, mask = cut(task, row, *decode(task, task.case[row]))
    matrix = task.matrix[row]
    centre = (np.array(task.patch) - 1) / 2
    offset = centre - matrix @ centre
    if task.rank == 2:
        import cv2

        # OpenCV counts x first.
        backward = np.hstack([matrix[::-1, ::-1], offset[::-1, None]]).astype(np.float64)
        flags = cv2.WARP_INVERSE_MAP
        size, border = task.patch[::-1], cv2.BORDER_REFLECT_101
        image = cv2.warpAffine(
            image, backward, size, flags=flags | cv2.INTER_LINEAR, borderMode=border
        )
        mask = cv2.warpAffine(
            mask, backward, size, flags=flags | cv2.INTER_NEAREST, borderMode=border
        )
    else:
        from scipy import ndimage

        image = ndimage.affine_transform(image, matrix, offset, order=1, mode="mirror")
        mask = ndimage.affine_transform(mask, matrix, offset, order=0, mode="mirror")
    return image[..., None], mask


def torch_volume(task, row):
    """Return one volume, rotated by torch.nn.functional.grid_sample."""
    import torch
    from torch.nn import functional

    image, mask = cut(task, row, *decode(task, task.case[row]))
    # grid_sample counts the last axis first, in units of half a length.
    half = (np.array(task.patch) - 1) / 2
    scaled = task.matrix[row] * half[None] / half[:, None]
    theta = torch.zeros(1, 3, 4)
    theta[0, :, :3] = torch.from_numpy(scaled[::-1, ::-1].copy())
    grid = functional.affine_grid(theta, [1, 1, *task.patch], align_corners=True)
    options = {"padding_mode": "reflection", "align_corners": True}
    image = functional.grid_sample(torch.from_numpy(image)[None, None], grid, **options)
    labels = torch.from_numpy(mask)[None, None].float()
    labels = functional.grid_sample(labels, grid, mode="nearest", **options)
    return image[0, 0].unsqueeze(-1), labels[0, 0].to(torch.uint8)


# --- The ways: each yields (images, masks) of a batch for ever, in the order of the rows ----------


def torch_batches(task, workers):
    """torch DataLoader: a process on each core, files decoded and transformed by C libraries."""
    import torch
    from torch.utils.data import DataLoader, Dataset, Sampler

    torch.set_num_threads(1)

    class Samples(Dataset):
        def __len__(self):
            return len(task)

        def __getitem__(self, row):
            return torch_volume(task, row) if task.rank == 3 else sample(task, row)

    class Cycle(Sampler):
        def __iter__(self):
            return itertools.cycle(range(len(task)))

    return iter(
        DataLoader(
            Samples(),
            batch_size=BATCH,
            sampler=Cycle(),
            num_workers=workers,
            persistent_workers=True,
            prefetch_factor=4,
            worker_init_fn=lambda _: torch.set_num_threads(1),
        )
    )


def grain_batches(task, workers):
    """Grain: the Dataset API, mp_prefetch with a process on each core."""
    import grain

    dataset = (
        grain.MapDataset.range(len(task))
        .repeat()
        .map(lambda row: sample(task, row))
        .batch(BATCH)
        # Both count batches, and each worker has both.
        .to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
        .mp_prefetch(grain.MultiprocessingOptions(num_workers=workers, per_worker_buffer_size=2))
    )
    return iter(dataset)


def keras_batches(task, workers):
    """Keras PyDataset: workers=cores, use_multiprocessing=True."""
    import keras
    from keras.src.trainers.data_adapters.py_dataset_adapter import PyDatasetAdapter

    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 10**6

        def __getitem__(self, index):
            rows = [(index * BATCH + offset) % len(task) for offset in range(BATCH)]
            images, masks = zip(*(sample(task, row) for row in rows), strict=True)
            return np.stack(images), np.stack(masks)

    dataset = Batches(workers=workers, use_multiprocessing=workers > 0, max_queue_size=8)
    adapter = PyDatasetAdapter(dataset, shuffle=False)
    adapter.on_epoch_begin()
    return iter(adapter.get_numpy_iterator())


def dali_batches(task, workers):
    """DALI on the CPU: its readers and decoders (2D), parallel external source (NIfTI)."""
    from nvidia.dali import fn, pipeline_def, types

    def parameters(batch):
        rows = (np.arange(BATCH) + batch * BATCH) % len(task)
        centre = (np.array(task.patch, np.float32) - 1) / 2
        drawn_values = [[], [], []]
        for row in rows:
            # DALI's maps count x first, from the corner of the first pixel.
            matrix = task.matrix[row]
            offset = (centre + 0.5) - matrix @ (centre + 0.5)
            drawn_values[0].append(
                np.hstack([matrix[::-1, ::-1], offset[::-1, None]]).astype(np.float32)
            )
            drawn_values[1].append(task.flips[row][::-1].astype(np.int32))
            drawn_values[2].append(task.start[row].astype(np.int32))
        return drawn_values

    def volume(info):
        row = info.idx_in_epoch % len(task)
        case = task.case[row]
        import nibabel

        image = np.asarray(nibabel.load(task.images[case]).dataobj, np.float32)
        mask = np.asarray(nibabel.load(task.masks[case]).dataobj).astype(np.uint8)
        return padded_after(image, task), padded(mask, task.patch)[..., None]

    @pipeline_def(
        batch_size=BATCH,
        num_threads=max(workers, 1),
        device_id=None,
        prefetch_queue_depth=2,
        py_num_workers=max(workers, 1),
        py_start_method="spawn",
    )
    def made():
        matrix, flips, start = fn.external_source(
            parameters, num_outputs=3, batch=True, dtype=[types.FLOAT, types.INT32, types.INT32]
        )
        if task.rank == 2:
            order = {"random_shuffle": False, "prefetch_queue_depth": 2}
            files = [task.images[case] for case in task.case]
            encoded, _ = fn.readers.file(files=files, name="images", **order)
            image = fn.decoders.image(encoded, output_type=types.GRAY)
            files = [task.masks[case] for case in task.case]
            encoded, _ = fn.readers.file(files=files, name="masks", **order)
            mask = fn.decoders.image(encoded, output_type=types.ANY_DATA, dtype=types.UINT16)
            mask = fn.cast(mask > 0, dtype=types.UINT8)
            image = fn.resize(
                image,
                size=task.size,
                interp_type=types.INTERP_LINEAR,
                antialias=True,
                dtype=types.FLOAT,
            )
            mask = fn.resize(mask, size=task.size, interp_type=types.INTERP_NN)
            image = fn.normalize(image)
        else:
            image, mask = fn.external_source(
                volume, num_outputs=2, batch=False, parallel=True, dtype=[types.FLOAT, types.UINT8]
            )
        axes = list(range(task.rank))
        names = {"horizontal": flips[0], "vertical": flips[1]}
        if task.rank == 3:
            names["depthwise"] = flips[2]
        out = []
        for array, kind in ((image, types.INTERP_LINEAR), (mask, types.INTERP_NN)):
            array = fn.slice(array, start, list(task.patch), axes=axes)
            if task.rank == 3:
                array = fn.reinterpret(array, layout="DHWC")
            array = fn.flip(array, **names)
            out.append(fn.warp_affine(array, matrix=matrix, interp_type=kind, inverse_map=True))
        return tuple(out)

    pipe = made()
    if task.rank == 3 and workers:
        pipe.start_py_workers()
    pipe.build()

    def batches():
        while True:
            images, masks = pipe.run()
            yield images.as_array(), masks.as_array()[..., 0]

    return batches()


def padded_after(image, task):
    """Normalise, then pad, as ours does; with the axis of channels."""
    return padded((image - image.mean()) / image.std(), task.patch)[..., None]


def our_pipeline(task, folder, *, by_dali=False):
    """Return our training pipeline over the files, decoded into `folder` if they are not there.

    With `by_dali` DALI decodes them when they are needed.
    """
    from tfunet.config.augmentation import Amount, Augmentation
    from tfunet.data.cache import build_cache
    from tfunet.data.layouts.folder import open_folder
    from tfunet.data.pipeline import TrainingPipeline

    source = open_folder(**task.source)
    cases = build_cache(
        source, Path(folder), patch=task.patch, store="files" if by_dali else "decoded"
    )
    return TrainingPipeline(
        augmented_by="dali" if by_dali else "tf",
        encoded=source.encoded() if by_dali else None,
        cases=cases,
        train=tuple(range(len(source.case_ids))),
        replica_batch=BATCH,
        last_step=10**6,
        augmentation=Augmentation(flips=True, rotation=Amount(low=-15, high=15)),
    )


def our_batches(task, workers):
    """Ours, from its cache."""
    limit_tensorflow(max(workers, 1))
    pipeline = our_pipeline(task, task.cache)
    return ((sample["image"][0], sample["mask"][0]) for sample in pipeline(range(1)))


def our_dali_batches(task, workers):
    """Ours, with pipeline = "dali"."""
    limit_tensorflow(max(workers, 1))
    pipeline = our_pipeline(task, task.cache, by_dali=True)
    return ((sample["image"][0], sample["mask"][0]) for sample in pipeline(range(1)))


def limit_tensorflow(threads):
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)


WAYS = {
    "ours": our_batches,
    "ours-dali": our_dali_batches,
    "dali": dali_batches,
    "torch": torch_batches,
    "grain": grain_batches,
    "keras": keras_batches,
}
MODULES = {
    "dali": ("nvidia.dali", "nibabel"),
    "torch": ("torch", "cv2", "nibabel"),
    "grain": ("grain", "cv2", "scipy"),
    "keras": ("keras", "cv2", "scipy"),
    "ours-dali": ("tensorflow", "nvidia.dali", "tfunet.data.pipeline", "imagecodecs"),
    "ours": (
        "tensorflow",
        "tfunet.data.layouts.folder",
        "tfunet.data.pipeline",
        "imagecodecs",
        "nibabel",
    ),
}


def tree_bytes():
    """Return the memory of this process and those that it started, what they share counted once."""
    me = psutil.Process()
    total = 0
    for process in [me, *me.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:
            continue
    return total


def answer(line, state):
    """Carry out one command and return what it found."""
    word, *arguments = line.split()
    task, make, workers = state["task"], state["make"], state["workers"]
    if word == "first":
        # Everything that a first epoch needs, but the import of the libraries.
        with tempfile.TemporaryDirectory() as folder:
            task.cache = folder
            since = time.perf_counter()
            batches = make(task, workers)
            for _ in range(task.epoch_samples // BATCH):
                next(batches)
            seconds = time.perf_counter() - since
            close(batches)
        return {"seconds": seconds}
    if "batches" not in state:
        task.cache = os.environ["PIPELINE_CACHE"]
        state["batches"] = make(task, workers)
    batches = state["batches"]
    if word == "check":
        count, path = int(arguments[0]), arguments[1]
        answers = [next(batches) for _ in range(count)]
        images, masks = (np.concatenate([np.asarray(b[i]) for b in answers]) for i in (0, 1))
        np.savez(path, image=images, mask=masks)
        return {}
    if word == "window":
        warm, timed = map(int, arguments)
        for _ in range(warm):
            next(batches)
        since = time.perf_counter()
        for _ in range(timed):
            next(batches)
        return {"seconds": time.perf_counter() - since}
    return {"bytes": tree_bytes()}


def close(batches):
    stop = getattr(batches, "close", None)
    if stop is not None:
        stop()
    del batches
    gc.collect()


def main():
    way, path = sys.argv[1:]
    # Answers go to the real standard output; what libraries print goes elsewhere.
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    missing = []
    for module in MODULES[way]:
        try:
            __import__(module)
        except ImportError as error:
            missing.append(error.name or module)
    print(json.dumps({"missing": missing}), file=out, flush=True)
    if missing:
        return
    state = {
        "task": Task(path),
        "make": WAYS[way],
        "workers": len(os.sched_getaffinity(0)),
    }
    for line in sys.stdin:
        print(json.dumps(answer(line, state)), file=out, flush=True)
    os._exit(0)  # Some libraries' own clean-up waits for workers for minutes.


if __name__ == "__main__":
    main()
