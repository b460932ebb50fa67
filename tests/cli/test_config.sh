#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The options file: sections, strength, and refusals that name the line.
. "$(dirname "$0")/functions.sh"
moe=$(tiny qwen3_5_moe-tiny)

refused() { # TEXT CONTENT
  printf "$2" >"$tmp/c.ini"
  expect 2 "$INFERNIX" --config "$tmp/c.ini" trace "$moe" --ids 1 --out "$tmp/x" --force
  err_has "$1"
  err_has "$tmp/c.ini"
}
long=$(head -c 300 /dev/zero | tr '\0' a)
refused 'line 2: unknown key thread in [global]; did you mean threads?' '[global]\nthread = 2\n'
refused 'line 3: neither [section] nor key = value' '[global]\nthreads = 1\nnonsense\n'
refused 'line 1: unknown section [gobal]; did you mean [global]?' '[gobal]\nthreads = 1\n'
refused 'line 1: a key before the first section' 'threads = 1\n'
refused 'line 2: longer than' "[global]\nplugin-path = $long\n"
refused 'line 3: starts with a space' '[global]\nplugin-path = a\n  threads = 1\n'
refused 'line 2: holds a NUL byte' '[global]\nthreads = \0001\n'
refused 'line 2: quiet is a switch' '[global]\nquiet = maybe\n'
refused 'line 2: config belongs on the command line' '[global]\nconfig = x\n'
refused 'threads (' '[global]\nthreads = 1k\n'
refused 'line 2): "1k"' '[global]\nthreads = 1k\n'
# Keys of other commands are checked too, so that a file is good or bad whatever is run.
refused 'line 2: unknown key tempreature in [run]' '[run]\ntempreature = 0.1\n'
refused 'line 2: unknown key rmp in [assist.nvfp4]; did you mean ramp?' '[assist.nvfp4]\nrmp = 64:77\n'
refused 'line 2: [assist.int8] --assist-ramp 64:300' '[assist.int8]\nramp = 64:300\n'
refused 'line 2: [assist.int8] max-columns' '[assist.int8]\nmax-columns = 0\n'
refused 'line 1: unknown section [assist.]' '[assist.]\nramp = 64:77\n'
expect 2 "$INFERNIX" --config "$tmp/missing.ini" plugins
err_has missing.ini

threads() { # CONTENT ARGUMENTS...: threads in force
  printf "$1" >"$tmp/c.ini"
  shift
  expect 0 "$INFERNIX" --config "$tmp/c.ini" "$@" trace "$moe" --ids 1 --out "$tmp/x" --force --json
  json_number threads "$tmp/out"
}
same '[global]' 3 "$(threads '[global]\nthreads = 3\n')"
same '[trace] over [global]' 2 "$(threads '[trace]\nthreads = 2\n[global]\nthreads = 3\n')"
same 'another section' 3 "$(threads '[run]\nthreads = 2\n[global]\nthreads = 3\n')"
printf '[assist.nvfp4]\nmax-columns = 300\nramp = 64:10,300:20\n[assist.bf16]\nmax-columns = 200\n' >"$tmp/c.ini"
expect 0 "$INFERNIX" --config "$tmp/c.ini" --device sim run -n 1 --greedy a
err_has 'up to 300 columns'
expect 0 "$INFERNIX" --config "$tmp/c.ini" --device sim run -n 1 --greedy a --experts bf16 --assist-max-columns 99
err_has 'up to 99 columns'
same 'the command line wins' 1 "$(threads '[trace]\nthreads = 2\n' --threads 1)"
same 'comments, blank lines, CRLF, no newline at the end' 2 "$(threads '# c\r\n\r\n[global]\r\n; c\r\nthreads = 2 ; c')"
# INFERNIX_CONFIG and the user's folder.
printf '[global]\nthreads = 2\n' >"$tmp/c.ini"
INFERNIX_CONFIG=$tmp/c.ini
export INFERNIX_CONFIG
expect 0 "$INFERNIX" trace "$moe" --ids 1 --out "$tmp/x" --force --json
same INFERNIX_CONFIG 2 "$(json_number threads "$tmp/out")"
unset INFERNIX_CONFIG
mkdir -p "$XDG_CONFIG_HOME/infernix"
printf '[global]\nthreads = 3\n' >"$XDG_CONFIG_HOME/infernix/infernix.ini"
expect 0 "$INFERNIX" trace "$moe" --ids 1 --out "$tmp/x" --force --json
same 'the user file' 3 "$(json_number threads "$tmp/out")"
exit 0
