"""The folder in which the kernel shows counters of energy, for tests to count in."""

RANGE = 262_143_328_850  # Microjoules, as a server tells.
ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "dram",
    "intel-rapl:1": "package-1-die-0",
    "intel-rapl:2": "psys",
    # The first package again, by another way.
    "intel-rapl-mmio:0": "package-0",
}


class Powercap:
    """Links to zones, each with its files; all counters begin at 1000."""

    def __init__(self, folder):
        self.root = folder / "class/powercap"
        self.root.mkdir(parents=True)
        (self.root / "intel-rapl").mkdir()
        for zone, name in ZONES.items():
            place = folder / "devices" / zone
            place.mkdir(parents=True)
            (self.root / zone).symlink_to(place)
            (place / "name").write_text(f"{name}\n")
            (place / "max_energy_range_uj").write_text(f"{RANGE}\n")
            self.set(zone, 1000)

    def file(self, zone):
        return self.root / zone / "energy_uj"

    def set(self, zone, microjoules):
        # By rename: the thread of a meter must not find an empty file.
        partial = self.root / zone / "partial"
        partial.write_text(f"{int(microjoules)}\n")
        partial.replace(self.file(zone))

    def close(self, zone):
        # Root may read all files, and tests may run as root; a folder, nobody can read.
        self.file(zone).unlink()
        self.file(zone).mkdir()
