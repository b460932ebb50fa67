# SPDX-License-Identifier: Apache-2.0
# Sourced by the shell tests.  Set by make check: INFERNIX (the program), IFX_TOP_BUILDDIR, IFX_TOP_SRCDIR, IFX_GOLDEN.
set -u
test_name=$(basename "$0" .sh)
tmp=$(mktemp -d "${TMPDIR:-/tmp}/infernix-$test_name.XXXXXX")
cleanup_list=
cleanup_fn() { cleanup_list="$cleanup_list $1"; }
on_exit() {
  status=$?
  for f in $cleanup_list; do $f; done
  rm -rf "$tmp"
  exit $status
}
trap on_exit EXIT
trap 'exit 1' INT TERM

# Nothing of the user's own settings reaches a test.
unset INFERNIX_CONFIG INFERNIX_PLUGIN_PATH
XDG_CONFIG_HOME=$tmp/no-config
export XDG_CONFIG_HOME

fail() { echo "FAIL: $test_name: $*"; exit 1; }
skip() { echo "SKIP: $test_name: $*"; exit 77; }
requires() { command -v "$1" >/dev/null 2>&1 || skip "$1 is not there"; }

# expect STATUS COMMAND...: runs it; output in $tmp/out and $tmp/err.
expect() {
  want=$1
  shift
  got=0
  "$@" >"$tmp/out" 2>"$tmp/err" </dev/null || got=$?
  [ "$got" -eq "$want" ] || {
    sed 's/^/  stderr: /' "$tmp/err"
    fail "exit status: expected $want, got $got: $*"
  }
}
# err_has TEXT, out_has TEXT: a fixed string in what expect kept.
err_has() { grep -qF -- "$1" "$tmp/err" || { sed 's/^/  stderr: /' "$tmp/err"; fail "standard error lacks: $1"; }; }
out_has() { grep -qF -- "$1" "$tmp/out" || { sed 's/^/  stdout: /' "$tmp/out"; fail "standard output lacks: $1"; }; }
out_empty() { [ ! -s "$tmp/out" ] || { head -5 "$tmp/out"; fail "standard output should be empty"; }; }
same() { [ "$2" = "$3" ] || fail "$1: expected '$2', got '$3'"; }

# json_number KEY FILE: the first number of that key.
json_number() { sed -n "s/^ *\"$1\": \\([-0-9.eE+]*\\),*\$/\\1/p" "$2" | head -1; }
json_string() { sed -n "s/^ *\"$1\": \"\\(.*\\)\",*\$/\\1/p" "$2" | head -1; }
# between VALUE LOW HIGH
between() { awk -v v="$1" -v a="$2" -v b="$3" 'BEGIN { exit !(v != "" && v >= a && v <= b) }'; }

# A model with a tokenizer: the demo of the tree, else the checkpoint it was made from.
demo_model() {
  if [ -e "$IFX_TOP_BUILDDIR/demo/demo.infernix" ]; then
    demo=$IFX_TOP_BUILDDIR/demo/demo.infernix
  elif [ -n "${IFX_DEMO_CHECKPOINT:-}" ]; then
    demo=$IFX_DEMO_CHECKPOINT
  else
    skip "no demo model in the tree and IFX_DEMO_CHECKPOINT is not set"
  fi
}
tiny() { echo "$IFX_GOLDEN/checkpoints/$1"; }
