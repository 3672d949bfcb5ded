"""The processor that this process runs on: every figure names it, and a plan is for one."""

import ctypes
import os
import platform
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

# what ONNX Runtime's matrix products choose their kernels by, as /proc/cpuinfo spells it
INSTRUCTIONS = (
    "avx2 fma avx512f avx_vnni avx512_vnni avx512_bf16 amx_int8 amx_bf16 asimddp i8mm bf16 sve sve2".split()  # noqa: SIM905
)

# flags of those that multiply in bfloat16, and their names
BFLOAT16 = {"avx512_bf16": "AVX-512 BF16", "amx_bf16": "AMX", "bf16": "ARM's BF16"}


@dataclass(frozen=True)
class Cpu:
    """A processor.

    Attributes:
        model: its name, with family and model number where the name alone would stand for several generations.
        instructions: those of `INSTRUCTIONS` that it has; empty where the system does not say.
        cores: that this process may run on.
    """

    model: str
    instructions: tuple[str, ...]
    cores: int

    def __str__(self) -> str:
        known = f", {' '.join(self.instructions)}" if self.instructions else ""
        return f"{self.model}, cores: {self.cores}{known}"


def this_cpu() -> Cpu:
    """The one that this process runs on."""
    fields = _cpuinfo()
    flags = set((fields.get("flags") or fields.get("features") or "").split())
    return Cpu(_model(fields), tuple(name for name in INSTRUCTIONS if name in flags), usable_cores())


def cpu_flags() -> set[str]:
    """All of the processor's features; empty where the system has no /proc/cpuinfo."""
    fields = _cpuinfo()
    return set((fields.get("flags") or fields.get("features") or "").split())


def usable_cores() -> int:
    """How many this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _model(fields: dict[str, str]) -> str:
    """Virtual machines cut names short ("AMD EPYC" is any of six generations), so the numbers are part of it."""
    name = fields.get("model name") or fields.get("cpu model") or fields.get("hardware") or _brand()
    family, number = fields.get("cpu family"), fields.get("model")
    if family and number:
        return f"{name} (family {family}, model {number})"
    maker, part = fields.get("cpu implementer"), fields.get("cpu part")
    return f"{name} (implementer {maker}, part {part})" if maker and part else name


def _brand() -> str:
    if sys.platform == "darwin":
        text = ctypes.create_string_buffer(256)
        size = ctypes.c_size_t(len(text))
        called = ctypes.CDLL(None).sysctlbyname(
            b"machdep.cpu.brand_string", text, ctypes.byref(size), None, ctypes.c_size_t(0)
        )
        if called == 0 and text.value:
            return text.value.decode(errors="replace")
    return platform.processor() or platform.machine() or "unknown"


@cache
def _cpuinfo() -> dict[str, str]:
    """The first processor's lines of /proc/cpuinfo, by name in small letters."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return read_cpuinfo(text)


def read_cpuinfo(text: str) -> dict[str, str]:
    """Lines of `name : value` up to the first empty one."""
    lines = text.strip().split("\n\n")[0].splitlines()
    pairs = (line.partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}
