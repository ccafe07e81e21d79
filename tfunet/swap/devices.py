"""Devices that a plan can be made for without having one. Pure."""

from tfunet.swap.costs import Device

GIB = 2**30
GB = 10**9
TERA = 10**12

# Of a disk that is only described: an NVMe disk on four lanes of PCI Express 3, in each direction,
# as its makers give it to 2 and 3 GB/s.
DISK_BYTES_PER_SECOND = 2 * GB

# PCI Express: what IBM measured for generation 3 (11 GB/s each way, Table 4 of their case study of
# large-model support), twice that for each later generation.
DEVICES = {
    "v100-pcie3": Device(
        memory_bytes=16 * GIB,
        flops_per_second=14 * TERA,
        half_flops_per_second=112 * TERA,
        bytes_per_second=900 * GB,
        link_bytes_per_second=11 * GB,
        source="NVIDIA V100 data sheet; IBM",
    ),
    "v100-nvlink2": Device(
        memory_bytes=16 * GIB,
        flops_per_second=15.7 * TERA,
        half_flops_per_second=125 * TERA,
        bytes_per_second=900 * GB,
        link_bytes_per_second=62 * GB,
        source="NVIDIA V100 data sheet; IBM measured 64 and 60 GB/s",
    ),
    "a100-pcie4": Device(
        memory_bytes=80 * GIB,
        flops_per_second=156 * TERA,
        half_flops_per_second=312 * TERA,
        bytes_per_second=1935 * GB,
        link_bytes_per_second=22 * GB,
        source="NVIDIA A100 80GB PCIe data sheet",
    ),
    "h100-pcie5": Device(
        memory_bytes=80 * GIB,
        flops_per_second=495 * TERA,
        half_flops_per_second=989 * TERA,
        bytes_per_second=3350 * GB,
        link_bytes_per_second=44 * GB,
        source="NVIDIA H100 SXM data sheet",
    ),
    "h200-pcie5": Device(
        memory_bytes=141 * GB,
        flops_per_second=495 * TERA,
        half_flops_per_second=989 * TERA,
        bytes_per_second=4800 * GB,
        link_bytes_per_second=44 * GB,
        source="NVIDIA H200 SXM data sheet",
    ),
    "gh200": Device(
        memory_bytes=96 * GB,
        flops_per_second=495 * TERA,
        half_flops_per_second=989 * TERA,
        bytes_per_second=4000 * GB,
        link_bytes_per_second=340 * GB,
        source="NVIDIA GH200 data sheet; three quarters of the link's 450 GB/s",
    ),
}
