#!/usr/bin/env bash
# Builds pyselfspec for this machine's GPU, checks it and measures it, without a network. Needs nvcc, CMake,
# a C++ compiler, Python with PyTorch (its cuBLAS is used), and what `python tools/gpu/pack.py` has packed.
# Options go to check.py (--help). The last line on stdout is one JSON object.
set -euo pipefail
cd "$(dirname "$0")/../.."
pack=${GPU_PACK:-build/gpu_pack} work=${GPU_CHECK:-build/gpu_check}
if [ ! -f "$pack/requirements.txt" ]; then
    echo "$pack is not there: run python tools/gpu/pack.py where there is a network, and bring it along" >&2
    exit 1
fi
python3 -m venv --system-site-packages "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --no-index --find-links "$pack/wheels" -r "$pack/requirements.txt" >&2
tar -xf "$pack/source.tar.xz"
PATH="$PWD/$work/venv/bin:$PATH" exec "$work/venv/bin/python" tools/gpu/check.py --folder "$work" "$@"
