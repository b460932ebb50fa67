#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Options: unknown names and half numbers are refused with the nearest name; exit status 2; nothing on standard output.
. "$(dirname "$0")/functions.sh"
moe=$(tiny qwen3_5_moe-tiny)

usage() { # TEXT ARGUMENTS...: exit 2, message has TEXT, no output
  text=$1
  shift
  expect 2 "$INFERNIX" "$@"
  err_has "$text"
  out_empty
  same "lines of the message ($*)" 1 "$(grep -vc 'no GPU is used' "$tmp/err")"
}

usage 'did you mean run?' rum
usage 'did you mean --temperature?' run --tempreature 0.1 hello
usage 'did you mean --threads?' --thread 2 run hello
usage 'did you mean --plugin-path?' --pluginpath x plugins
usage 'unknown option --frobnicate' run --frobnicate
usage 'unknown command frobnicate' frobnicate
usage 'no command' --threads 2
usage 'needs a value' run hello --temperature
usage 'takes no value' run hello --greedy=yes
for bad in 12k '' ' 12' 12.5 0x10 1e3 twelve; do
  usage '--ctx' trace "$moe" --ids 1 --out "$tmp/x" --ctx "$bad"
done
for bad in -1 0 99999999999999999999; do
  usage 'out of range' trace "$moe" --ids 1 --out "$tmp/x" "--ctx=$bad"
done
for bad in 1,5 nan inf 0.7x ''; do
  usage '--temperature' run "$moe" hello --temperature "$bad"
done
usage 'out of range: 0 to 1' run "$moe" hello --top-p 1.5
usage '--top-p: 0 leaves no token' run "$moe" hello --top-p 0
usage 'not a whole number' trace "$moe" --ids 0000000000000000000000000000000000000000000000000000000000000000012 --out "$tmp/x"
usage 'int9' trace "$moe" --ids 1 --out "$tmp/x" --kv-dtype int9
usage 'nvfp5' trace "$moe" --ids 1 --out "$tmp/x" --experts nvfp5
usage 'did you mean cpu?' trace "$moe" --ids 1 --out "$tmp/x" --device cpi
usage 'gruop' --plugin kv_int8,gruop=64 trace "$moe" --ids 1 --out "$tmp/x"
usage 'no_such' --plugin no_such trace "$moe" --ids 1 --out "$tmp/x"
usage 'avx3' --cpu avx3 trace "$moe" --ids 1 --out "$tmp/x"
usage 'out of range' trace "$moe" --ids 1,512 --out "$tmp/x"
usage 'not a whole number' trace "$moe" --ids 1,b --out "$tmp/x"
usage 'give one of' trace "$moe" --out "$tmp/x"
usage 'no output' trace "$moe" --ids 1
usage 'too many arguments' trace "$moe" extra --ids 1 --out "$tmp/x"
usage '--system needs --chat' run "$moe" hello --system x
usage 'empty text' run "$moe" hello --stop ''
usage 'more than one prompt' run "$moe" hello --prompt there
usage 'is not error, warn' --log-level loud plugins
[ ! -e "$tmp/x" ] || fail "a refused command left its output file"

# Before or after the command, = or a space, the last one counts.
for form in '--threads 1 trace' '--threads=1 trace'; do
  # shellcheck disable=SC2086
  expect 0 "$INFERNIX" $form "$moe" --ids 1,2 --out "$tmp/a.st" --force
done
expect 0 "$INFERNIX" trace "$moe" --threads 0 --ids 1,2 --ids 3,4,5 --out "$tmp/a.st" --force --json --threads 1
same 'tokens of the last --ids' 3 "$(json_number tokens "$tmp/out")"
same threads 1 "$(json_number threads "$tmp/out")"
expect 0 "$INFERNIX" trace "-m" "$moe" --ids '[1, 2]' -o "$tmp/a.st" --force --quiet
[ ! -s "$tmp/err" ] || fail "--quiet is not quiet: $(cat "$tmp/err")"

# Missing and unreadable models: exit 1, the path named.
expect 1 "$INFERNIX" trace "$tmp/nothing.infernix" --ids 1 --out "$tmp/x"
err_has "$tmp/nothing.infernix"
expect 1 "$INFERNIX" run ./no/such/model
err_has ./no/such/model
mkdir "$tmp/empty"
expect 1 "$INFERNIX" run "$tmp/empty" hello
err_has "$tmp/empty"
mkfifo "$tmp/fifo.infernix"
expect 1 "$INFERNIX" run "$tmp/fifo.infernix" hello
expect 1 "$INFERNIX" run "$moe" hello
err_has tokenizer
expect 1 "$INFERNIX" run "$moe" --file "$tmp/no-such-prompt"
err_has no-such-prompt

# Help and version.
expect 0 "$INFERNIX" --help
out_has 'usage: infernix'
expect 0 "$INFERNIX" run --help
out_has '--temperature'
expect 0 "$INFERNIX" --version
out_has 'plugin ABI'
# Output that cannot be written is an error.
if [ -w /dev/full ]; then
  got=0
  "$INFERNIX" --help >/dev/full 2>"$tmp/err" || got=$?
  same 'exit status with a full disk' 1 "$got"
fi
exit 0
