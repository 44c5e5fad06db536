#!/usr/bin/env bash
# Choose the noise after training: make several candidates in one run, measure and attack each, and check the chains of
# reports.
#
#   privctl demo -o /tmp/privctl-demo
#   examples/choose-a-candidate.sh /tmp/privctl-demo
#
# privctl trained the demo's model, so its report has the training facts, and no options are needed for them. The noise
# is that of the published formula, with which the model stays useful but has no useful guarantee. Without
# --calibration, epsilon holds, but the model becomes useless.
set -euo pipefail

demo=${1:?give the folder that privctl demo made}
privctl=${PRIVCTL:-privctl}

$privctl noise "$demo/model" --calibration published --epsilon 0.5 --epsilon 5 --epsilon 50 --evaluate "$demo/nonmembers.jsonl" \
    --output "$demo/candidate"

for epsilon in 0.5 5 50; do
    $privctl audit "$demo/candidate-eps$epsilon" --members "$demo/members.jsonl" \
        --nonmembers "$demo/nonmembers.jsonl" --attack loss
    $privctl inspect "$demo/candidate-eps$epsilon" >"$demo/candidate-eps$epsilon.inspection.txt"
done
