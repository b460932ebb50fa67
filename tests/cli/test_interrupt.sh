#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Ctrl-C: the first ends the work within a second, with the numbers so far and status 130; the second ends at once.
. "$(dirname "$0")/functions.sh"
demo_model

now() { date +%s.%N; }
# interrupt SECONDS TIMES COMMAND...: starts it, sends SIGINT after a while; sets got and took.
interrupt() {
  after=$1 times=$2
  shift 2
  # A shell starts background jobs with SIGINT ignored; the program takes it back.
  "$@" >"$tmp/out" 2>"$tmp/err" </dev/null &
  pid=$!
  sleep "$after"
  sent=$(now)
  i=0
  while [ $i -lt "$times" ]; do
    kill -INT $pid 2>/dev/null
    i=$((i + 1))
  done
  got=0
  wait $pid || got=$?
  took=$(awk -v a="$sent" -v b="$(now)" 'BEGIN { print b - a }')
}
# One second is promised on an idle machine; on a busy one the program gets its share of the CPUs.
limit=$(awk -v cpus="$(nproc)" '{ print 1.5 + $1 / cpus }' /proc/loadavg 2>/dev/null || echo 3)

interrupt 1.5 1 "$INFERNIX" run "$demo" --greedy --ignore-eos -n 0 --ctx 4096 "Once upon a time"
same 'status in decode' 130 "$got"
between "$took" 0 "$limit" || fail "decode went on for $took s"
grep -q 'tok/s' "$tmp/err" || fail "no numbers after an interrupt: $(cat "$tmp/err")"

awk 'BEGIN { for (i = 0; i < 800; i++) printf "one two three four five " }' >"$tmp/long"
interrupt 1 1 "$INFERNIX" run "$demo" --greedy --file "$tmp/long" -n 1
if [ "$got" -ne 0 ]; then
  same 'status in a prompt' 130 "$got"
  between "$took" 0 "$limit" || fail "the prompt went on for $took s"
fi
interrupt 0.05 1 "$INFERNIX" run "$demo" --greedy -n 0 --ignore-eos "Once upon a time"
[ "$got" -eq 130 ] || fail "status in load: expected 130, got $got"
between "$took" 0 "$limit" || fail "load went on for $took s"
interrupt 0.7 2 "$INFERNIX" run "$demo" --greedy --ignore-eos -n 0 "Once upon a time"
same 'status after two' 130 "$got"
between "$took" 0 "$limit" || fail "two interrupts took $took s"
exit 0
