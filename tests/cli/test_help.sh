#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Help and the manual page name the same commands and options.
. "$(dirname "$0")/functions.sh"
pod=$IFX_TOP_SRCDIR/docs/infernix.pod
[ -r "$pod" ] || fail "$pod is missing"

# Option names of a help text: those at the start of a line.
help_options() { sed -n 's/^  \(-[-a-zA-Z, ]*[a-z-]\).*/\1/p' "$1" | tr ',' '\n' | sed 's/^ *//; s/ .*//' | grep '^-' | sort -u; }
# Option names of the manual between two headings.
pod_options() { sed -n "/^=head[12] $1\$/,/^=head/p" "$pod" | sed -n 's/^=item //p' | grep -o 'B<-[^>]*>' | sed 's/B<//; s/>//' | sort -u; }

expect 0 "$INFERNIX" --help
help_options "$tmp/out" >"$tmp/help"
pod_options 'GLOBAL OPTIONS' >"$tmp/pod"
[ -s "$tmp/help" ] || fail 'no options found in --help'
diff "$tmp/help" "$tmp/pod" >"$tmp/diff" || fail "global options: < in --help only, > in the manual only: $(cat "$tmp/diff")"
sed -n '/^commands:/,/^$/s/^  \([a-z]*\) .*/\1/p' "$tmp/out" >"$tmp/commands"
[ "$(wc -l <"$tmp/commands")" -ge 10 ] || fail 'commands are missing in --help'
grep -o '^=head2 [a-z]*$' "$pod" | sed 's/=head2 //' | sort >"$tmp/pod-commands"
sort "$tmp/commands" | diff - "$tmp/pod-commands" >"$tmp/diff" || fail "commands: < in --help, > in the manual: $(cat "$tmp/diff")"
# What this build has kernels for, or why for no GPU.
expect 0 "$INFERNIX" --version
grep -qE '^CUDA: ([0-9.]+ \(sm [0-9 ]*[0-9]\)|no \(.+\))$' "$tmp/out" || fail "--version does not say what GPUs the build is for: $(grep CUDA "$tmp/out")"
out_has 'CPU levels built: '
while read -r command; do
  expect 0 "$INFERNIX" "$command" --help
  grep -q "^usage: infernix $command" "$tmp/out" || fail "$command --help has no usage line"
  sed '/^options of every command/,$d' "$tmp/out" >"$tmp/own"
  help_options "$tmp/own" >"$tmp/help"
  pod_options "$command" >"$tmp/pod"
  diff "$tmp/help" "$tmp/pod" >"$tmp/diff" || fail "$command: < in --help only, > in the manual only: $(cat "$tmp/diff")"
  # Options in the synopsis exist.
  for o in $(sed -n '1s/^usage: //p' "$tmp/out" | grep -oE '(^|[ [|])-[-a-z]+' | tr -d '[| '); do
    grep -qxF -- "$o" "$tmp/help" || "$INFERNIX" --help | grep -qF -- "$o" || fail "$command: the synopsis names $o, which is no option"
  done
done <"$tmp/commands"
exit 0
