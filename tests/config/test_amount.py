"""Amounts of memory as users write them."""

import pytest

from tfunet.config import amount
from tfunet.swap.arena import device_memory


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", None),
        ("420MiB", 420 * 2**20),
        ("12 GiB", 12 * 2**30),
        ("1.5gb", 1_500_000_000),
        ("2TiB", 2 * 2**40),
        ("2TB", 2 * 10**12),
        ("1048576", 2**20),
        (2**20, 2**20),
        (0, 0),
        ("0.5", 0.5),
        (0.5, 0.5),
        (1.0, 1.0),
    ],
)
def test_budget_is_read(text, expected):
    assert amount.parse(text) == expected


@pytest.mark.parametrize("text", ["200", "64", "1048575"])
def test_a_small_number_without_a_unit_is_refused(text):
    with pytest.raises(ValueError, match=rf"no unit, and would be {text} bytes. Write '{text}MiB'"):
        amount.parse(text)
    assert amount.parse(f"{text}B") == amount.parse(int(text)) == int(text)
    with pytest.raises(ValueError, match="swap_host must be an amount such as"):
        amount.in_bytes("swap_host", text)


@pytest.mark.parametrize("text", ["", "much", "12 parsecs", "1.5", 1.5, "0.0", -1, "-1GiB", "GiB"])
def test_what_is_no_amount_of_memory_is_refused(text):
    with pytest.raises(ValueError, match=r"swap budget .* Units: B, KiB, MiB, GiB, TiB, KB"):
        amount.parse(text)


def test_share_of_a_device_is_taken_of_its_cap(monkeypatch):
    monkeypatch.setenv("TF_CPU_ALLOCATOR_USE_BFC", "true")
    monkeypatch.setenv("TF_CPU_BFC_MEM_LIMIT_IN_MB", "400")
    assert device_memory.in_bytes("auto") == 400 * 2**20
    assert device_memory.in_bytes(0.25) == 100 * 2**20
    assert device_memory.in_bytes("1GiB") == 2**30


def test_cpu_without_a_cap_has_no_auto_budget(monkeypatch):
    monkeypatch.delenv("TF_CPU_ALLOCATOR_USE_BFC", raising=False)
    with pytest.raises(ValueError, match="Give an amount such as '4GiB'"):
        device_memory.in_bytes("auto")
