"""The libraries of metrics of whole cases: loaded where they are needed, or named if missing."""

from importlib import import_module
from types import ModuleType

from tfunet.config.not_installed import NotInstalledError

INSTALL = "which is not installed. Install it with: pip install 'tfunet[metrics]'"


def ndimage() -> ModuleType:
    """Return scipy.ndimage; raises NotInstalledError if scipy is not installed."""
    needed = "Metrics of surfaces, lesions and objects need scipy"
    return _loaded("scipy.ndimage", needed)


def morphology() -> ModuleType:
    """Return skimage.morphology; raises NotInstalledError if scikit-image is not installed."""
    return _loaded("skimage.morphology", "cldice needs scikit-image")


def segment_metrics() -> ModuleType:
    """Return skimage.metrics; raises NotInstalledError if scikit-image is not installed."""
    return _loaded("skimage.metrics", "arand, vi_split and vi_merge need scikit-image")


def _loaded(name: str, needed: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise NotInstalledError(f"{needed}, {INSTALL}") from error
