#!/usr/bin/env bash
# What does privacy cost? This fine-tunes one model without privacy and with several budgets, measures each result on
# held-out records, and attacks it with the records it was trained on.
#
#   examples/compare-budgets.sh MODEL TRAIN.jsonl HELD-OUT.jsonl FOLDER [options of privctl retrain]
#
# Creates FOLDER. BUDGETS sets the epsilons, "1 8" by default.
set -euo pipefail

model=${1:?give a model} train=${2:?give records to train on} held_out=${3:?give held-out records}
folder=${4:?give a folder to create}
shift 4
privctl=${PRIVCTL:-privctl}
mkdir "$folder"

finetune() { # NAME METHOD OPTION...
    local name=$1 method=$2
    shift 2
    $privctl retrain "$method" "$model" --data "$train" --held-out "$held_out" -o "$folder/$name" "$@" \
        >"$folder/$name.training.txt"
    $privctl audit "$folder/$name" --members "$train" --nonmembers "$held_out" >"$folder/$name.audit.txt"
}

finetune plain plain "$@"
for epsilon in ${BUDGETS:-1 8}; do
    finetune "epsilon-$epsilon" dp-sgd --epsilon "$epsilon" "$@"
done

for name in plain $(printf 'epsilon-%s ' ${BUDGETS:-1 8}); do
    printf '%-12s %s   %s\n' "$name" "$(grep 'held-out perplexity' "$folder/$name.training.txt")" \
        "$(grep '^loss  *AUC' "$folder/$name.audit.txt" | tr -s ' ')"
done
