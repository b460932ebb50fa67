#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# unpack.sh SRC DST: copies the golden data, *.gz unpacked.  In an in-tree build SRC and DST are one folder.
set -eu
src=$(cd "$1" && pwd)
mkdir -p "$2"
dst=$(cd "$2" && pwd)
cd "$src"
find . -type f | while read -r f; do
  mkdir -p "$dst/$(dirname "$f")"
  case $f in
    *.gz) gzip -dc "$f" > "$dst/${f%.gz}.tmp"; mv "$dst/${f%.gz}.tmp" "$dst/${f%.gz}" ;;
    *) [ "$src" = "$dst" ] || { cp "$f" "$dst/$f"; chmod u+w "$dst/$f"; } ;;
  esac
done
