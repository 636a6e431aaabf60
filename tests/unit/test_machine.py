"""What the machine did: parsers and differences."""

from __future__ import annotations

import json

import pytest

from kvfabric.machine import (
    CpuSampler,
    MachineFormatError,
    Softnet,
    cpu_sample,
    host_facts,
    parse_cpu_model,
    parse_cpu_times,
    parse_memory_bytes,
    parse_softnet,
    read_cpu_times,
    read_softnet,
    softnet_delta,
)

pytestmark = pytest.mark.unit


def stat(*cores: tuple[int, ...]) -> str:
    total = [sum(column) for column in zip(*cores, strict=True)]
    lines = ["cpu  " + " ".join(map(str, total))]
    lines += [f"cpu{index} " + " ".join(map(str, core)) for index, core in enumerate(cores)]
    return "\n".join([*lines, "intr 1 2 3", "ctxt 5"]) + "\n"


ZERO = (0,) * 10


def test_stolen_time_is_busy_and_waiting_for_io_is_idle() -> None:
    before = parse_cpu_times(stat(ZERO, ZERO))
    # user nice system idle iowait irq softirq steal guest guest_nice
    after = parse_cpu_times(stat((10, 0, 0, 30, 20, 0, 0, 40, 10, 0), (0, 0, 0, 100, 0, 0, 0, 0, 0, 0)))
    sample = cpu_sample(before, after, time_s=1.0, interval_s=1.0)
    assert sample is not None
    assert sample.idle == pytest.approx(0.75)
    assert dict(sample.cores) == pytest.approx({0: 0.5, 1: 1.0})
    assert sample.worst_core[0] == 0


def test_iowait_that_falls_never_gives_a_share_outside_0_to_1() -> None:
    before = parse_cpu_times(stat((0, 0, 0, 0, 50, 0, 0, 0, 0, 0)))
    after = parse_cpu_times(stat((60, 0, 0, 0, 40, 0, 0, 0, 0, 0)))
    sample = cpu_sample(before, after, time_s=1.0, interval_s=1.0)
    assert sample is not None
    assert sample.idle == 0.0


def test_no_tick_gives_no_sample_and_a_core_gone_offline_is_left_out() -> None:
    two, one = parse_cpu_times(stat(ZERO, ZERO)), parse_cpu_times(stat((1, 0, 0, 1, 0, 0, 0, 0, 0, 0)))
    assert cpu_sample(two, two, time_s=1.0, interval_s=1.0) is None
    sample = cpu_sample(two, one, time_s=1.0, interval_s=1.0)
    assert sample is not None
    assert [core for core, _ in sample.cores] == [0]


def test_the_sampler_measures_from_its_last_sample_on() -> None:
    readings = iter(
        parse_cpu_times(stat(core)) for core in (ZERO, (100, 0, 0, 0, 0, 0, 0, 0, 0, 0), (100, 0, 0, 100, 0, 0, 0, 0, 0, 0))
    )
    sampler = CpuSampler(10.0, lambda: next(readings))
    first, second = sampler.sample(11.0, label_s=1.0), sampler.sample(13.0)
    assert first is not None
    assert second is not None
    assert (first.idle, first.time_s, first.interval_s) == (0.0, 1.0, 1.0)
    assert (second.idle, second.time_s, second.interval_s) == (1.0, 13.0, 2.0)


def test_text_that_is_not_proc_stat_is_refused() -> None:
    with pytest.raises(MachineFormatError):
        parse_cpu_times("cpu 1 2\n")
    with pytest.raises(MachineFormatError):
        parse_cpu_times("intr 5\n")


def test_softnet_counts_drops_and_squeezes_of_every_core_over_a_wrap() -> None:
    before = parse_softnet(
        "000000ff fffffffe 00000001 0 0 0 0 0 0 0 0 0 00000000\n00000010 00000000 00000002 0 0 0 0 0 0 0 0 0 00000001\n"
    )
    after = parse_softnet(
        "000001ff 00000003 00000001 0 0 0 0 0 0 0 0 0 00000000\n00000020 00000007 0000000c 0 0 0 0 0 0 0 0 0 00000001\n"
    )
    assert softnet_delta(before, after) == Softnet(drops=12, time_squeeze=10)


def test_softnet_of_old_kernels_has_no_core_numbers() -> None:
    assert parse_softnet("1 2 3\n1 4 5\n") == ((0, 2, 3), (1, 4, 5))
    with pytest.raises(MachineFormatError):
        parse_softnet("1 2\n")


def test_this_machine_can_be_read() -> None:
    assert read_cpu_times().cores
    assert read_softnet()


def test_host_facts_are_json_and_name_the_kernel() -> None:
    facts = json.loads(json.dumps(host_facts(("numpy", "no-such-package"))))
    assert facts["kernel"]
    assert facts["cores"] >= 1
    assert facts["memory_bytes"] > 0
    assert facts["packages"]["numpy"]
    assert facts["packages"]["no-such-package"] is None


def test_processor_and_memory_are_found_or_missing() -> None:
    assert parse_cpu_model("processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\n") == "Some CPU @ 2 GHz"
    assert parse_cpu_model("processor\t: 0\n") == ""
    assert parse_memory_bytes("MemTotal:  2 kB\n") == 2048
    assert parse_memory_bytes("") is None
