"""GeoJSON as QuPath writes it: a file for each image, in pixels. Imports no TensorFlow."""

from typing import Any

from tfunet.data.formats.drawings import Annotated, Annotations, DrawnObject, drawing


def annotations(content: Any) -> Annotations:
    """Return what the parsed file holds: a feature, a list of them, or a collection."""
    if isinstance(content, dict):
        content = content.get("features", [content])
    drawn = Annotated(drawings=tuple(map(_drawing, content)))
    return Annotations(kind="GeoJSON", images={"": drawn})


def _drawing(feature: dict[str, Any]) -> DrawnObject:
    properties = feature.get("properties") or {}
    classification = properties.get("classification") or {}
    names = classification.get("names") or [classification.get("name")]
    name = ": ".join(str(part) for part in names if part)
    geometry = feature.get("geometry") or {}
    kind, coordinates = geometry.get("type"), geometry.get("coordinates") or ()
    if kind == "Polygon":
        return drawing(name, (_plane(ring) for ring in coordinates))
    if kind == "MultiPolygon":
        return drawing(name, (_plane(ring) for polygon in coordinates for ring in polygon))
    return DrawnObject(name=drawing(name, []).name, fault=f"is a {kind}, which has no area")


def _plane(ring: Any) -> list[Any]:
    """Return the points without a height, which GeoJSON may have."""
    return [point[:2] for point in ring]
