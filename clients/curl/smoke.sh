#!/usr/bin/env bash
# The checks that a person would make by hand on a fresh Fluoroscope server.
#
#   clients/curl/smoke.sh [BASE]        BASE defaults to http://127.0.0.1:8000
#
# Prints a line for each check; ends with code 1 and a sentence at the first wrong answer.
# Needs bash, curl 7.82 or newer, and python3 to read JSON. For a server with a key, set
# FLUOROSCOPE_KEY.
set -euo pipefail

BASE=${1:-http://127.0.0.1:8000}
BASE=${BASE%/}
export ENGLISH='The cat chased the mouse because it was hungry.'
export CHINESE='猫追老鼠，因为它饿了。'

question='before the first question'
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAIL $question: $1" >&2
  exit 1
}

command -v curl >/dev/null || fail 'curl is not installed'
command -v python3 >/dev/null || fail 'python3 is not installed; it reads the JSON here'

# The key goes through a file: the list of processes shows arguments to everybody.
(umask 077 && printf '%s' "${FLUOROSCOPE_KEY:+Authorization: Bearer $FLUOROSCOPE_KEY}" \
  >"$work/headers")

# ask STATUS METHOD PATH [BODY]: the answer must have the status, a refusal the form of a problem.
ask() {
  question="$2 $3"
  local said
  said=$(curl --silent --show-error --max-time 60 --noproxy '127.0.0.1,localhost,::1' \
    --header "@$work/headers" --output "$work/answer" --write-out '%{http_code} %{content_type}' \
    --request "$2" ${4:+--json "$4"} "$BASE$3") || fail "no server answers at $BASE"
  [ "${said%% *}" = "$1" ] || fail "the status should be $1 and is ${said%% *}: $(beginning)"
  case $1 in
    4*) [ "${said#* }" = application/problem+json ] ||
      fail "a refusal should be application/problem+json and is ${said#* }" ;;
  esac
}

# read_answer PYTHON: runs it with the last answer as `a`.
read_answer() {
  python3 -S -X utf8 -c "import json, os, sys
a = json.load(sys.stdin)
ENGLISH, CHINESE = os.environ['ENGLISH'], os.environ['CHINESE']
$1" <"$work/answer"
}

beginning() {
  head -c 400 "$work/answer"
}

# check COMPLAINT PYTHON: PYTHON reads the last answer as `a` and asserts what must be true; what it
# prints is this check's line. COMPLAINT says what is wrong where it does not come to that.
check() {
  local line
  line=$(read_answer "$2" 2>"$work/why") || fail "$1 ($(tail -n 1 "$work/why")): $(beginning)"
  echo "ok   $question: $line"
}

ask 200 GET /health/live
check 'the process should say that it is live' '
assert a["status"] == "live"
print("the process runs")'

ask 200 GET /health/ready
check 'the model should be ready' '
assert a["status"] == "ready" and a["model"]
print(a["model"], "is ready")'

ask 200 GET /v1/model
check 'the model should say what it is and whether it was trained' '
c = a["config"]
assert isinstance(a["trained"], bool) and len(a["weights_sha256"]) == 64
print(a["id"], "trained" if a["trained"] else "NOT trained, its numbers mean nothing", sep=", ",
      end=": ")
print(c["n_layer"], "layers of", c["n_head"], "heads,", f"""{a["parameters"]:,} parameters""")'
parameters=$(read_answer 'print(a["parameters"])')
export parameters

ask 200 GET /v1/sites
check 'attn.pattern should be a site with the axes layer, head, query, key' '
axes = {site["site"]: site["axes"] for site in a["sites"]}
assert axes["attn.pattern"] == ["layer", "head", "query", "key"]
print(sum(site["present"] for site in a["sites"]), "sites can be read")'

ask 200 POST /v1/tokenize "{\"text\": \"$CHINESE\"}"
check 'whole Chinese characters should come back' '
shown = [token["display"] for token in a["tokens"] if not token["special"]]
assert "".join(shown) == CHINESE, shown
assert all(CHINESE[t["char_start"]:t["char_end"]] for t in a["tokens"] if not t["special"])
print("·".join(part for part in shown if part))'

ids=$(read_answer 'print(a["token_ids"])')
ask 200 POST /v1/detokenize "{\"token_ids\": $ids}"
check 'the ids of a text should give the text back' '
assert a["text"].endswith(CHINESE)
print(a["text"])'

ask 200 POST /v1/attention "{\"text\": \"$ENGLISH\", \"layers\": [0], \"heads\": [0]}"
check 'each row should sum to 1 and nothing should look ahead' '
pattern = a["tensors"]["attn.pattern"]
assert pattern["axes"] == ["layer", "head", "query", "key"]
n = a["input"]["n_tokens"]
assert pattern["shape"] == [1, 1, n, n] and len(a["tokens"]) == n
rows = pattern["data"][0][0]
error = max(abs(sum(row) - 1) for row in rows)
assert error < 1e-3, error
assert all(weight == 0 for query, row in enumerate(rows) for weight in row[query + 1:])
assert a["checks"]["future_mass"] == 0 and a["checks"]["finite"]
print(n, "rows sum to 1 within", f"{error:.0e},", "the future gets exactly 0")'

ask 200 POST /v1/logits "{\"text\": \"$ENGLISH\", \"top\": 5}"
check 'probabilities should come likeliest first and stay under 1' '
top = a["predictions"][0]["top"]
chances = [token["probability"] for token in top]
assert len(top) == 5 and chances == sorted(chances, reverse=True)
assert 0 < sum(chances) <= 1 + 1e-6, chances
print("next", *(f"""{token["text"]!r} {token["probability"]:.3f}""" for token in top[:3]))'

ask 200 POST /v1/generate "{\"text\": \"$CHINESE\", \"temperature\": 0, \"max_new_tokens\": 4, \"top\": 2, \"stop_ids\": []}"
check 'four tokens should be chosen, each the likeliest, and make up the text' '
sample, steps = a["done"]["samples"][0], a["steps"]
assert [step["token"]["id"] for step in steps] == sample["token_ids"]
assert len(steps) == 4 and sample["reason"] == "max_new_tokens", sample["reason"]
assert all(step["candidates"][0]["drawn"] for step in steps)
assert "".join(step["text"] for step in steps) == sample["text"]
print("goes on", repr(sample["text"]))'

ask 200 POST /v1/sample "{\"logits\": [2, 1, 0, null], \"settings\": [{}, {\"top_k\": 1}]}"
check 'probabilities should be the softmax of the logits, and 1 for the only one kept' '
import math
plain, only = ([c["probability"] for c in choice["candidates"]] for choice in a["choices"])
expected = [math.exp(n) / (math.exp(2) + math.e + 1) for n in (2, 1, 0)] + [0]
assert max(abs(p - q) for p, q in zip(plain, expected)) < 1e-9, plain
assert only == [1, 0, 0, 0], only
print("2, 1, 0 become", *(f"{p:.4f}" for p in plain[:3]))'

ask 422 POST /v1/attention "{\"text\": \"$ENGLISH\", \"layers\": [1000]}"
check 'a layer out of range should be refused with the range' '
assert "1000" in a["detail"] and "valid are" in a["detail"]
print(a["detail"])'

ask 422 POST /v1/attention "{\"text\": \"$ENGLISH\", \"token_ids\": [1, 2]}"
check 'text and token_ids together should be refused' '
assert "exactly one" in a["detail"]
print(a["detail"])'

ask 422 POST /v1/attention '{"text": ""}'
check 'an empty text should be refused' '
assert a["status"] == 422 and a["detail"]
print(a["detail"])'

ask 400 POST /v1/attention '{"text": '
check 'a body that is not JSON should be refused' '
assert a["status"] == 400 and a["detail"]
print(a["detail"])'

ask 200 GET /v1/model/parameters
check "the total should be the $parameters that the model says" '
assert a["totals"]["unique"] == int(os.environ["parameters"]), a["totals"]
print(f"""{a["totals"]["unique"]:,} in all""")'

echo "$BASE passes"
