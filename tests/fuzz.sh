#!/usr/bin/env bash
# Fuzzes `decode`, `conversation` and `lane` for the given seconds each (default 60), the first two
# seeded with the lines of the transcripts, the third with a frame of each type. Stable toolchain:
# coverage needs no nightly, only the sanitizers would.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
tests/tools.sh cargo-fuzz
PATH="${CARGO_TARGET_DIR:-$PWD/target}/tools/bin:$PATH"
mkdir -p tests/fuzz/corpus/{decode,conversation,lane}
for type in 01 02 03 04 05 06 07 08 09 0a 0b; do
  # Without the length: the target adds it.
  { printf "\\x$type"; head -c 31 /dev/zero; } > "tests/fuzz/corpus/lane/$type"
done
for target in decode conversation; do
  corpus=tests/fuzz/corpus/$target
  for transcript in tests/transcripts/*.txt; do
    # The lines that a client sends; the conversation target needs eight bytes before them.
    { [ "$target" = decode ] || printf 'seedseed'
      sed -n 's/^> \(.*\)$/\1\r/p' "$transcript"
    } > "$corpus/$(basename "$transcript" .txt)"
  done
done
for target in decode conversation lane; do
  cargo fuzz run --fuzz-dir tests/fuzz --sanitizer none "$target" -- \
    -max_total_time="$seconds" -max_len=8192 -timeout=10 -print_final_stats=1
done
