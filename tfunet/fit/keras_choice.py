"""Whether a script would get Keras 3 over TensorFlow. Imports neither."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfunet.files.typed import RecordError, read_json


def check_keras(environment: Mapping[str, str], home: Path) -> None:
    """Raise ValueError where variables or Keras's own file choose another Keras.

    Args:
        home: Folder of the user, in which Keras looks for .keras/keras.json.
    """
    if environment.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true"):
        raise ValueError(
            "TF_USE_LEGACY_KERAS makes Keras 2 of tf.keras, and tfunet trains with Keras 3. Unset "
            "it, and write `import keras`."
        )
    file = Path(environment.get("KERAS_HOME") or home / ".keras") / "keras.json"
    if named := environment.get("KERAS_BACKEND"):
        where = "KERAS_BACKEND"
    else:
        try:
            named = (read_json(file, dict[str, Any]) or {}).get("backend")
        except RecordError:  # Keras does not read it either.
            named = None
        where = str(file)
    if named not in (None, "tensorflow"):
        raise ValueError(
            f"{where} chooses the Keras backend {named!r}, and tfunet trains on TensorFlow. Start "
            "with KERAS_BACKEND=tensorflow."
        )
