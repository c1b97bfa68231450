#!/usr/bin/env bash
# Compiles the kernels of gpuipc/cuda/kernels to PTX, which is stored compressed. The compiler is
# pinned to the release, so that every build gives the same text; no CUDA SDK is used.
set -euo pipefail
cd "$(dirname "$0")/../../gpuipc/cuda/kernels"

WANT=22.1.8
CLANG=${CLANG:-clang-22}
if ! command -v "$CLANG" >/dev/null; then
  echo "make ptx needs clang $WANT. Debian 12: apt-get install clang-22 (from bookworm-security); elsewhere" >&2
  echo "the release of LLVM of that number, named by CLANG=/path/to/clang." >&2
  exit 1
fi
have=$("$CLANG" -dumpversion)
if [ "$have" != "$WANT" ]; then
  echo "make ptx needs clang $WANT, and $CLANG is $have: its text would differ." >&2
  exit 1
fi

# The sources ordered by name, each as its name, a newline and its bytes.
digest=$(LC_ALL=C; export LC_ALL; for f in *.cu device.h; do printf '%s\n' "$f"; cat "$f"; done | sha256sum | cut -d' ' -f1)
tmp=$(mktemp)
trap 'rm -f "$tmp"' EXIT
{
  echo "// Kernels of spliced, made from *.cu and device.h by make ptx. Do not edit."
  echo "// sources sha256 $digest"
  echo "// clang $WANT"
  "$CLANG" -x cuda --cuda-device-only --cuda-gpu-arch=sm_80 --cuda-feature=+ptx78 -nocudainc -nocudalib \
    -std=c++17 -O3 -ffp-contract=off -fno-exceptions -Wall -Wextra -Werror -fno-verbose-asm -S -o - spliced.cu |
    sed -e '/^\t\/\/ \(begin\|end\) inline asm$/d' -e 's/[ \t]*\/\/ .*$//' -e '/^\/*$/d'
} >"$tmp"
go run ../../../scripts/ptx "$tmp" spliced.ptx.zst
{
  head -n 3 "$tmp"
  echo "// The text: zstd -dc spliced.ptx.zst"
} >spliced.ptx
echo "spliced.ptx.zst: $(grep -c "^\.visible \.entry" "$tmp" || true) kernels"
