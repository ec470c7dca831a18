"""The processor's name in its maker's words, from what each system offers. Loads nothing native."""

from __future__ import annotations

import platform
import re
import subprocess
import sys
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")
SYSCTL = ("/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string")
REGISTRY = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
TIMEOUT_S = 5.0
# Where Linux gives numbers instead of a name, as on ARM: a maker and its number for a design.
_NUMBERS = ("CPU implementer", "CPU part", "CPU variant")


def processor_name(system: str = sys.platform) -> str:
    """Return the name, such as "Apple M1", or the kind of processor where the system says no more.
    system: as sys.platform."""
    by_system = {"linux": _linux, "darwin": _macos, "win32": _windows}
    name = by_system[system]() if system in by_system else ""
    return name or platform.processor() or platform.machine()


def _linux() -> str:
    try:
        text = CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # of several processors, the first counts
    facts: dict[str, str] = dict(re.findall(r"^([^:\n]+?)\s*: (.+)$", text, re.MULTILINE)[::-1])
    if "model name" in facts:
        return facts["model name"].strip()
    numbers = " ".join(f"{key} {facts[key]}" for key in _NUMBERS if key in facts)
    return f"{platform.machine()} {numbers}" if numbers else ""


def _macos() -> str:
    try:
        done = subprocess.run(
            SYSCTL, capture_output=True, encoding="utf-8", errors="replace", timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _windows() -> str:
    try:
        import winreg
    except ImportError:
        return ""
    try:
        with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, REGISTRY) as key:  # type: ignore[attr-defined]
            return str(winreg.QueryValueEx(key, "ProcessorNameString")[0]).strip()  # type: ignore[attr-defined]
    except OSError:
        return ""
