#!/usr/bin/env bash
# Fuzzes `decode` and `conversation` for so many seconds each (default 60), seeded with the lines of
# the transcripts. Stable toolchain: coverage needs no nightly, only the sanitizers would.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60}
command -v cargo-fuzz >/dev/null || cargo install --locked cargo-fuzz
for target in decode conversation; do
  corpus=tests/fuzz/corpus/$target
  mkdir -p "$corpus"
  for transcript in tests/transcripts/*.txt; do
    # The lines a client sends, as it sends them; the conversation target wants eight bytes first.
    { [ "$target" = decode ] || printf 'seedseed'
      sed -n 's/^> \(.*\)$/\1\r/p' "$transcript"
    } > "$corpus/$(basename "$transcript" .txt)"
  done
  cargo fuzz run --fuzz-dir tests/fuzz --sanitizer none "$target" -- \
    -max_total_time="$seconds" -max_len=8192 -timeout=10 -print_final_stats=1
done
