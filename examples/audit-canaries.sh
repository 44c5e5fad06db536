#!/usr/bin/env bash
# What does a model remember? This plants canaries 1, 10 and 100 times, trains a model on the data with and without
# differential privacy, and attacks both: exposure of the canaries, extraction, membership, and a certified lower bound
# on epsilon. A model with an AUC near one half may still complete canaries for anyone who asks.
#
#   examples/audit-canaries.sh MODEL TRAIN.jsonl HELD-OUT.jsonl FOLDER [options of privctl retrain]
#
# Creates FOLDER. The variables CANARIES (300) and EPSILON (8) set the number of canaries and the budget; AUDIT has
# further options of privctl audit.
set -euo pipefail

model=${1:?give a model} train=${2:?give records to train on} held_out=${3:?give held-out records}
folder=${4:?give a folder to create}
shift 4
privctl=${PRIVCTL:-privctl}
mkdir "$folder"

$privctl canary plant "$train" -o "$folder/planted.jsonl" --count "${CANARIES:-300}" \
    --copies 1 --copies 10 --copies 100 --prefix-from "$train" | tee "$folder/planting.txt"
commitment=$(sed -n 's/.*\(blake3:[0-9a-f]*\).*/\1/p' "$folder/planting.txt" | head -1)

judge() { # NAME
    # shellcheck disable=SC2086
    $privctl audit "$folder/$1" --members "$train" --nonmembers "$held_out" --train "$train" --held-out "$held_out" \
        --canaries "$folder/planted.canaries.json" --canary-data "$folder/planted.jsonl" --commitment "$commitment" \
        ${AUDIT:-} >"$folder/$1.audit.txt" || [ $? -eq 1 ] # a refuted claim is a result
}

$privctl retrain plain "$model" --data "$folder/planted.jsonl" --held-out "$held_out" -o "$folder/plain" "$@" \
    >"$folder/plain.training.txt"
judge plain
$privctl retrain dp-sgd "$model" --data "$folder/planted.jsonl" --held-out "$held_out" -o "$folder/private" \
    --epsilon "${EPSILON:-8}" "$@" >"$folder/private.training.txt"
judge private

for name in plain private; do
    printf '\n%s: %s\n' "$name" "$(grep 'held-out perplexity' "$folder/$name.training.txt")"
    grep -E '^(loss +AUC|canary|canaries|included|left out|one run|extraction)|VIOLATED|REJECTED|INCONCLUSIVE' "$folder/$name.audit.txt"
done
