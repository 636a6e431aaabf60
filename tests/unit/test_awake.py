"""Asking the kernel to keep idle CPUs awake, with a file in the device's place."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvfabric.awake import cpus_awake

pytestmark = pytest.mark.unit


def open_files() -> set[str]:
    return {
        os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{name}")
    }


def test_a_latency_of_zero_is_asked_for_as_long_as_the_block_lasts(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    with cpus_awake(device) as awake:
        assert awake
        assert device.read_bytes() == bytes(4)
        assert str(device) in open_files()
    assert str(device) not in open_files()


def test_the_wish_is_dropped_when_the_block_fails(tmp_path: Path) -> None:
    device = tmp_path / "cpu_dma_latency"
    device.touch()
    with pytest.raises(ZeroDivisionError), cpus_awake(device):
        raise ZeroDivisionError
    assert str(device) not in open_files()


def test_a_machine_without_the_device_is_left_as_it_is(tmp_path: Path) -> None:
    with cpus_awake(tmp_path / "nothing") as awake:
        assert not awake


def test_a_device_that_refuses_is_not_taken_for_one_that_agreed() -> None:
    with cpus_awake(Path("/dev/full")) as awake:
        assert not awake
