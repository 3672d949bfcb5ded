"""The processor by name: what a plan is for, and what every figure is from."""

from pathlib import Path

import pytest

from pluto_edge import _cpu
from pluto_edge._cpu import Cpu, cpu_flags, read_cpuinfo, this_cpu, usable_cores

EPYC = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 26
model\t\t: 2
model name\t: AMD EPYC
flags\t\t: fpu avx2 fma avx512f avx512_vnni avx512_bf16

processor\t: 1
model name\t: another
"""
ARM = """processor\t: 0
Features\t: fp asimd asimddp bf16
CPU implementer\t: 0x41
CPU part\t: 0xd0c

Hardware\t: somewhere else
"""


def seen(monkeypatch: pytest.MonkeyPatch, text: str) -> Cpu:
    monkeypatch.setattr(_cpu, "_cpuinfo", lambda: read_cpuinfo(text))
    monkeypatch.setattr(_cpu, "usable_cores", lambda: 4)
    monkeypatch.setattr(_cpu, "_brand", lambda: "some CPU")
    return this_cpu()


def test_a_name_that_stands_for_several_generations_has_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = seen(monkeypatch, EPYC)
    assert cpu == Cpu("AMD EPYC (family 26, model 2)", ("avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16"), 4)
    assert str(cpu) == "AMD EPYC (family 26, model 2), cores: 4, avx2 fma avx512f avx512_vnni avx512_bf16"
    assert "fpu" in cpu_flags()


def test_arm_has_numbers_and_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(monkeypatch, ARM) == Cpu("some CPU (implementer 0x41, part 0xd0c)", ("asimddp", "bf16"), 4)


def test_a_system_that_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert seen(monkeypatch, "") == Cpu("some CPU", (), 4) and str(this_cpu()) == "some CPU, cores: 4"


def test_this_machine() -> None:
    cpu = this_cpu()
    assert cpu.model and cpu.cores == usable_cores() >= 1
    if Path("/proc/cpuinfo").exists():
        assert set(cpu.instructions) <= cpu_flags()
