#!/usr/bin/env bash
# Builds pyselfspec for this machine's card, tests it there and measures, in about an hour, and writes one file to send back.
#
#     tools/gpu/first_hour.sh                      # NVIDIA; needs nvcc, and PyTorch's cuBLAS where the toolkit has none
#     tools/gpu/first_hour.sh --backend vulkan     # any card; docs/gpu.md names the packages
#
# Also needs CMake, a C++ compiler, Python, and a network or what `python tools/gpu/pack.py` has packed where there is one.
# Options go to check.py (--help).
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=${GPU_PACK:-build/gpu_pack} work=${GPU_CHECK:-build/gpu_check}
python3 -m venv --system-site-packages "$work/venv"
needed=$work/requirements.txt from=()
if [ -f "$pack/requirements.txt" ]; then
    needed=$pack/requirements.txt from=(--no-index --find-links "$pack/wheels")
    tar -xf "$pack/source.tar.xz"
else
    python3 -c "import tomllib; made = tomllib.load(open('pyproject.toml', 'rb'))
print(*made['build-system']['requires'], *made['project']['dependencies'], 'pytest', 'ninja', sep='\n')" >"$needed"
fi
if ! "$work/venv/bin/python" -m pip install --quiet "${from[@]}" -r "$needed" >&2; then
    echo "pip cannot get what is needed: run python tools/gpu/pack.py where there is a network, and bring $pack along" >&2
    exit 1
fi
PATH="$PWD/$work/venv/bin:$PATH" exec "$work/venv/bin/python" tools/gpu/check.py --folder "$work" "$@"
