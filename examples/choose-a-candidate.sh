#!/usr/bin/env bash
# Choose the noise after training: several candidates in one run, measured, attacked, and the chain checked.
#
#   privctl demo -o /tmp/privctl-demo
#   examples/choose-a-candidate.sh /tmp/privctl-demo
#
# privctl trained the demo's model, so its report holds the training facts and no flags are needed for them. The noise
# is the published formula's, which leaves a usable model and guarantees nothing useful; without --calibration, epsilon
# holds and this model is lost.
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
