#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# A disk that is full: refused before the work where that can be told, and where it cannot, nothing is left behind.
. "$(dirname "$0")/functions.sh"
if [ "${1:-}" != inside ]; then
  # A mount and a user namespace of its own: no rights are needed where the kernel allows that.
  command -v unshare >/dev/null 2>&1 || skip "unshare is not there"
  if [ "$(id -u)" -eq 0 ]; then own="unshare -m"; else own="unshare -rm"; fi
  mkdir "$tmp/try"
  $own mount -t tmpfs -o size=64k none "$tmp/try" 2>/dev/null || skip "file systems cannot be mounted here"
  $own "${SHELL:-/bin/sh}" "$0" inside || exit 1
  exit 0
fi

moe=$(tiny qwen3_5_moe-mid)
mkdir "$tmp/disk"
mount -t tmpfs -o size=3m none "$tmp/disk" || fail 'mount'
cleanup_fn unmount
unmount() { umount "$tmp/disk"; }
left() { ls -A "$tmp/disk" | tr '\n' ' '; }

# 5.7 MB do not fit in 3 MiB: said before any work, with both sizes.
expect 1 "$INFERNIX" convert "$moe" "$tmp/disk/m.infernix" --experts bf16
err_has 'are needed'
err_has 'free'
same 'left after a refusal' '' "$(left)"

# The same when the free space cannot be told: it ends where the disk does.
printf '%s\n' '#include <errno.h>' 'struct statvfs;' \
  'int statvfs(const char *p, struct statvfs *s) { (void)p; (void)s; errno = ENOSYS; return -1; }' \
  'int statvfs64(const char *p, struct statvfs *s) { (void)p; (void)s; errno = ENOSYS; return -1; }' >"$tmp/shim.c"
if [ -n "${CC:-}" ] && ! ldd "$INFERNIX" 2>/dev/null | grep -q asan && $CC -shared -fPIC -o "$tmp/shim.so" "$tmp/shim.c" 2>/dev/null; then
  echo old >"$tmp/disk/kept.infernix"
  for out in m kept; do
    expect 1 env LD_PRELOAD="$tmp/shim.so" "$INFERNIX" convert "$moe" "$tmp/disk/$out.infernix" --experts bf16 --force
    err_has 'No space left'
    err_has "$out.infernix"
    same "left when the disk was full ($out)" 'kept.infernix ' "$(left)"
    same 'the file that was there' old "$(cat "$tmp/disk/kept.infernix")"
  done
  rm "$tmp/disk/kept.infernix"
else
  echo 'no compiler, or a sanitizer: the part with a shim is left out'
fi
# Other files are written the same way.
expect 1 "$INFERNIX" trace "$moe" --ids "$(seq -s, 1 900)" --out "$tmp/disk/t.st"
err_has 'No space left'
same 'left by trace' '' "$(left)"
# What fits goes through.
expect 0 "$INFERNIX" trace "$moe" --ids 1,2,3 --out "$tmp/disk/t.st"
same 'left by a trace that fits' 't.st ' "$(left)"
exit 0
