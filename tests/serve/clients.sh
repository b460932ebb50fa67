#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# clients.sh [FOLDER]: real clients against the server: curl, the packages openai and @anthropic-ai/sdk of npm, the chat page in headless
# Chromium.  FOLDER (default: clients in the build tree) holds the packages; what is missing is installed there with npm.  Not part
# of make check, since it needs a network once; each part that cannot run is skipped with its reason.  Run in the build tree:
#
#   sh SRC/tests/serve/clients.sh
#
# Screenshots of the page are left in FOLDER.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
infernix=${INFERNIX:-$(pwd)/cli/infernix}
folder=${1:-$(pwd)/clients}
port=${PORT:-18431}
golden=${IFX_GOLDEN:-$(pwd)/tests/data/golden}
[ -x "$infernix" ] || { echo "clients.sh: $infernix is missing; run it in the build tree"; exit 1; }
mkdir -p "$folder"
cd "$folder"
failed=0
skip() { echo "SKIP: $1: $2"; }

# The demo's own template has no place for tools; Qwen3's has.
template=
if [ -r "$golden/tokenizer-qwen3/tokenizer_config.json" ] && command -v node >/dev/null; then
  node -e 'process.stdout.write(JSON.parse(require("fs").readFileSync(process.argv[1])).chat_template)' \
    "$golden/tokenizer-qwen3/tokenizer_config.json" >template.jinja
  template="--chat-template template.jinja"
fi
# shellcheck disable=SC2086
"$infernix" serve --port "$port" --api-key test-key $template --access-log access.jsonl -q &
server=$!
trap 'kill $server 2>/dev/null; wait $server 2>/dev/null || :' EXIT
url=http://127.0.0.1:$port

if command -v curl >/dev/null; then
  curl -sf --retry 15 --retry-delay 1 --retry-connrefused "$url/health" >/dev/null
  curl -sf "$url/v1/chat/completions" -H 'Authorization: Bearer test-key' -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"What is 7 + 5?"}],"temperature":0}' | grep -q '12' || { echo 'FAIL: curl: chat'; failed=1; }
  curl -sfN "$url/v1/chat/completions" -H 'Authorization: Bearer test-key' -H 'Content-Type: application/json' \
    -d '{"messages":[{"role":"user","content":"What is 7 + 5?"}],"stream":true}' | grep -q '^data: \[DONE\]' || { echo 'FAIL: curl: stream'; failed=1; }
  [ $failed -ne 0 ] || echo 'PASS: curl'
else
  skip curl 'curl is not there'
  sleep 3
fi

if ! command -v node >/dev/null || ! command -v npm >/dev/null; then
  skip 'openai, @anthropic-ai/sdk, page' 'node or npm is not there'
  exit $failed
fi
[ -d node_modules/openai ] && [ -d node_modules/@anthropic-ai/sdk ] && [ -d node_modules/playwright-core ] ||
  npm install --no-audit --no-fund --loglevel error openai @anthropic-ai/sdk playwright-core >npm.log 2>&1 || :
for client in openai anthropic page; do
  case $client in
    openai) module=openai ;;
    anthropic) module=@anthropic-ai/sdk ;;
    page) module=playwright-core ;;
  esac
  if [ ! -d "node_modules/$module" ]; then
    skip "$client" "npm cannot install $module: $(head -n 1 npm.log)"
    continue
  fi
  chromium=$(command -v chromium || command -v chromium-browser || command -v google-chrome || :)
  if [ "$client" = page ] && [ -z "$chromium" ]; then
    skip page 'there is no Chromium'
    continue
  fi
  cp "$here/client_$client.mjs" .
  if URL="$url" KEY=test-key CHROMIUM="$chromium" TOOLS="$template" node "client_$client.mjs"; then
    echo "PASS: $client"
  else
    echo "FAIL: $client"
    failed=1
  fi
done
exit $failed
