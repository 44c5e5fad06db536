#!/usr/bin/env bash
# Every step from a model to a release. This plants canaries and retrains the model with differential privacy; a second
# branch trains with clipped gradients and adds noise afterwards. Both results are attacked, verified, checked against a
# policy that this script writes, and reported. The result of each step is its exit code: 0 pass, 1 a claim was refuted
# or the policy failed, 3 undecided (an audit of few records is too small). Any other code stops the script.
#
#   examples/whole-story.sh MODEL TRAIN.jsonl HELD-OUT.jsonl FOLDER [options of privctl retrain]
#
# Creates FOLDER with a policy, a page of both models, and a section in each model's README.md. The variables CANARIES
# (300), EPSILON (8) and NOISE (8) set the number of canaries, the budget, and the target epsilon of the noise; AUDIT
# has further options of privctl audit. Only your own policy can decide whether a model may be released.
set -euo pipefail

model=${1:?give a model} train=${2:?give records to train on} held_out=${3:?give held-out records}
folder=${4:?give a folder to create}
shift 4
privctl=${PRIVCTL:-privctl}
epsilon=${EPSILON:-8}
mkdir "$folder"

outcome() { # FILE COMMAND...: run COMMAND with its output in FILE, and print its result
    local file=$1 code=0
    shift
    "$@" >"$file" || code=$?
    case $code in
    0) printf '%-28s %s\n' "$(basename "$file" .txt)" "pass" ;;
    1) printf '%-28s %s\n' "$(basename "$file" .txt)" "FAILED, see $file" ;;
    3) printf '%-28s %s\n' "$(basename "$file" .txt)" "inconclusive, see $file" ;;
    *) exit "$code" ;;
    esac
}

$privctl canary plant "$train" -o "$folder/planted.jsonl" --count "${CANARIES:-300}" --prefix-from "$train" \
    >"$folder/planting.txt"
commitment=$(sed -n 's/.*\(blake3:[0-9a-f]*\).*/\1/p' "$folder/planting.txt" | head -1)

$privctl retrain dp-sgd "$model" --data "$folder/planted.jsonl" --epsilon "$epsilon" -o "$folder/private" "$@" \
    >"$folder/private.training.txt"
$privctl retrain clipped "$model" --data "$folder/planted.jsonl" -o "$folder/clipped" "$@" \
    >"$folder/clipped.training.txt"
$privctl noise "$folder/clipped" --epsilon "${NOISE:-8}" --calibration gaussian --regime nonconvex \
    --delta 1e-5 -o "$folder/noised" >"$folder/noised.noise.txt"

cat >"$folder/privctl-policy.toml" <<EOF
# Requirements for both models: a bound on epsilon that holds for any loss, and reports of all steps.
max_epsilon = $epsilon
at_delta = 1e-5
require = ["proved", "conditional"]
accepted_assumptions = ["starting weights", "vocabulary", "training-facts", "training-rounding"]
require_model = true
required_steps = ["retrain", "audit", "verify"]
max_age_days = 90
EOF
{
    sed 's/^require = .*/require = ["proved"]/' "$folder/privctl-policy.toml"
    echo 'max_auc = 0.6'
    echo 'forbid_outcomes = ["REFUTED", "INCONCLUSIVE"]'
} >"$folder/strict-policy.toml"

for name in private noised; do
    reports=("$folder/$name.report.json" "$folder/$name.audit.report.json" "$folder/$name.verify.report.json")
    # shellcheck disable=SC2086
    outcome "$folder/$name.audit.txt" $privctl audit "$folder/$name" --members "$train" --nonmembers "$held_out" \
        --canaries "$folder/planted.canaries.json" --canary-data "$folder/planted.jsonl" --commitment "$commitment" \
        ${AUDIT:-}
    outcome "$folder/$name.verify.txt" $privctl verify "${reports[0]}" -o "${reports[2]}"
    outcome "$folder/$name.gate.txt" $privctl gate "${reports[@]}" --model "$folder/$name" \
        --policy "$folder/privctl-policy.toml"
    outcome "$folder/$name.strict-gate.txt" $privctl gate "${reports[@]}" --model "$folder/$name" \
        --policy "$folder/strict-policy.toml"
    $privctl report "${reports[@]}" --format model-card -o "$folder/$name/README.md"
done
$privctl report "$folder"/{private,noised}{,.audit,.verify}.report.json -o "$folder/page.html"
