"""Machines that are described, and what messages between their devices take."""

import pytest
from planned_run import machine

from tfunet.config.amount import GB, GIB
from tfunet.performance.devices import DEVICES
from tfunet.plan.machine import Curve, described, of_cores, speedup


@pytest.mark.parametrize(
    ("text", "hosts", "devices", "name", "rate"),
    [
        ("4 nodes x 6 v100-nvlink2, edr", 4, 6, "v100-nvlink2", 12.5 * GB),
        ("4 nodes x 6 x v100-nvlink2, edr", 4, 6, "v100-nvlink2", 12.5 * GB),
        ("1 node x 8 h100", 1, 8, "h100-pcie5", 12.5 * GB),
        ("200 hosts x 6 V100-NVLink2, 2xEDR", 200, 6, "v100-nvlink2", 25 * GB),
        ("2 v100-pcie3", 1, 2, "v100-pcie3", 12.5 * GB),
    ],
)
def test_what_is_described(text, hosts, devices, name, rate):
    found = described(text)
    assert (found.hosts, found.devices, found.device) == (hosts, devices, DEVICES[name])
    assert found.across.bytes_per_second == rate
    assert found.memory_bytes == DEVICES[name].memory_bytes
    assert found.name == text


def test_more_is_said_of_a_cluster():
    found = described("1 node x 4 v100-pcie3, edr, 2 to a bus", 32 * GIB)
    assert found.copy_rate() == DEVICES["v100-pcie3"].link_bytes_per_second / 2
    assert found.device_bytes("mirrored", 4) == 32 * GIB


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("many v100", "is not understood. Write it as"),
        ("", "is not understood"),
        ("0 nodes x 6 h100", "has no device"),
        ("2 nodes x 6 h100, hrd", "Unknown network 'hrd'. Did you mean 'hdr'"),
        ("2 nodes x 6 h10", "Unknown device 'h10'"),
        ("6 v100", "has several links"),
    ],
)
def test_what_is_not_understood(text, said):
    with pytest.raises(ValueError, match=said):
        described(text)


@pytest.mark.parametrize(
    ("count", "seconds"),
    [
        (1, 0.0),
        # 2 (n - 1) / n of 80 MB at 0.8 GB/s, and 10 us a hop.
        (2, 0.1 + 2e-5),
        (4, 0.15 + 6e-5),
        # Over hosts at 0.4 GB/s.
        (8, 0.35 + 14e-5),
    ],
)
def test_averages_go_round_a_ring(count, seconds):
    taken = machine(hosts=2).average_seconds(80e6, count, "multiworker")
    agreeing = 500e-6 if count > 1 else 0
    assert taken == pytest.approx(seconds + agreeing)


def test_devices_on_a_bus_wait_for_each_other_where_their_copies_meet():
    def longer(count, *, other=2.0, hidden=0.0):
        return machine(devices_per_bus=2).copies_seconds(1e9, count, other, hidden)

    # A second each way. The other device is at work in this direction for a fourth of its step.
    assert longer(1) == pytest.approx(2.0)
    assert longer(2) == longer(4) == pytest.approx(2 * 1.25)
    # With nothing else to do, each way is busy for half of a step.
    assert longer(2, other=0.0) == pytest.approx(2 * 1.5)
    assert longer(2, other=1e6) == pytest.approx(2.0, rel=1e-3)
    assert longer(1, hidden=1.0) == 0.0
    # What hid alone does not hide from the other device's copies: half of a step is copies.
    assert longer(2, hidden=1.0) == pytest.approx(2 * 0.5)


def test_devices_of_a_host_may_have_a_link_of_their_own():
    over_host, own = (described(f"8 {name}") for name in ("a100-pcie4", "a100-sxm4"))
    assert own.device.link_bytes_per_second == over_host.device.link_bytes_per_second
    # 1.75 times the bytes at 0.8 of 22 and 300 GB/s.
    for found, rate in ((over_host, 22 * GB), (own, 300 * GB)):
        taken = found.average_seconds(10 * GB, 8, "mirrored")
        assert taken == pytest.approx(17.5 * GB / (0.8 * rate), rel=0.01)


def test_what_was_measured_comes_first():
    curve = Curve(num_bytes=(0, 1e6), seconds=(1e-3, 3e-3))
    measured = machine(averages={"horovod": curve}, exchanges={"horovod": curve})
    assert measured.average_seconds(1e6, 2, "horovod") == pytest.approx(3e-3)
    assert measured.exchange_seconds(0.5e6, 2, "horovod") == pytest.approx(2e-3)
    assert curve(2e6) == pytest.approx(5e-3)
    assert curve.faster(2)(1e6) == pytest.approx(2e-3)
    assert machine().exchange_seconds(0.8e9, 2, "horovod") == pytest.approx(1.002, rel=1e-3)


def test_processes_have_their_share_of_cores_and_memory():
    found, many = of_cores(4, 8 * GIB), "multiworker"
    assert [found.device_cores(many, count) for count in (1, 2, 4)] == [4, 2, 1]
    assert [found.device_bytes(many, count) / GIB for count in (1, 2, 4)] == [8, 4, 2]
    slower = [found.slowdown(many, count) for count in (1, 2, 4)]
    assert slower == [1, pytest.approx(1 + (found.busy - 1) / 3), found.busy]
    assert machine().device_cores(many, 2) == 0
    assert 1 < speedup(2) < 2
    assert of_cores(4, 8 * GIB, limit_bytes=GIB).device_bytes(many, 2) == GIB


def test_devices_of_one_process_take_turns_on_all_cores():
    found = of_cores(4, 8 * GIB, limit_bytes=GIB)
    assert found.device_cores("mirrored", 2) == 4
    assert found.slowdown("mirrored", 2) == 2
    assert found.device_bytes("mirrored", 2) == GIB // 2
    assert machine().slowdown("mirrored", 2) == 1


def test_a_device_has_no_more_cores_than_the_run_gives_it():
    found = of_cores(4, 8 * GIB, cores_each=1)
    assert [found.device_cores("horovod", count) for count in (1, 2)] == [1, 1]
    assert found.device_cores("mirrored", 2) == 2


def test_devices_that_share_cores_take_turns_on_them():
    found = of_cores(2, 8 * GIB, devices=4)
    assert [found.device_cores("horovod", count) for count in (1, 2, 4)] == [2, 1, 1]
    assert found.slowdown("horovod", 4) == 2 * found.slowdown("horovod", 2)
    assert found.device_cores("mirrored", 4) == 2
    assert found.slowdown("mirrored", 4) == 4
    assert found.device_bytes("horovod", 4) == 2 * GIB


def test_estimates_are_named():
    assert any("each op" in one for one in of_cores(2, GIB).estimates)
    curve = Curve(num_bytes=(0, 1), seconds=(0, 1))
    known = of_cores(
        2, GIB, core=DEVICES["gh200"], averages={"horovod": curve}, busy=1, backends=["horovod"]
    )
    assert known.estimates == ()
    more = of_cores(2, GIB, averages={"horovod": curve}, backends=["horovod", "mirrored"])
    assert any(one.endswith("of mirrored") for one in more.estimates)
