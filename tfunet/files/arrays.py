"""Arrays and facts about them in one file (.npz), which is data and no program. No TensorFlow."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tfunet.files.atomic import replacing
from tfunet.files.typed import FieldError, RecordError

FACTS = "facts"
# A small file can unpack to a large one.
MOST_BYTES = 2**28


def write_arrays(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, Any]) -> None:
    """Write a complete .npz file or none. Raises WriteError."""
    text = np.frombuffer(json.dumps(facts).encode(), np.uint8)
    with replacing(path) as partial:
        np.savez_compressed(partial, **{FACTS: text}, **arrays)


def read_arrays(path: Path) -> tuple[dict[str, np.ndarray], dict[str, Any]] | None:
    """Return arrays and facts; None if the file is missing. Raises RecordError."""
    if not path.is_file():
        return None
    try:
        with zipfile.ZipFile(path) as members:
            if sum(member.file_size for member in members.infolist()) > MOST_BYTES:
                raise FieldError(f"it unpacks to more than {MOST_BYTES >> 20} MiB")
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        if odd := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
            raise FieldError(f"{odd[0]} is no array")
        facts = json.loads(arrays.pop(FACTS).tobytes())
        if not isinstance(facts, dict):
            raise FieldError("its facts are no table")
    except FieldError as error:
        raise RecordError(path, error) from error
    except Exception as error:  # Whatever is wrong in a zip file, an array or JSON.
        raise RecordError(path, FieldError(f"it cannot be read ({error})")) from error
    return arrays, facts
