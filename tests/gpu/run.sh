#!/usr/bin/env bash
# All that a GPU can show, in at most 27 minutes. Each part has a time limit and writes its figures to
# tests/bench/results/NAME-cuda.json as soon as they are known; the next is run whatever became of it.
#
#   tests/gpu/run.sh [PART...]              the parts named, or all of them in their order, on a machine with a GPU
#   tests/gpu/run.sh --list                 the parts, most valuable first, with their limits in seconds
#   tests/gpu/run.sh --toy --device cpu     everything once at no size, to see that it works; writes to a folder of its own
#
# --results FOLDER is where figures go, --wheels FOLDER holds packages to be used beside those installed, $PYTHON names
# the interpreter (default: python). The exit status is the number of parts that failed.
set -uo pipefail
cd "$(dirname "$0")/../.."

# Parts and their limits: what follows from a fault in an early one is known before time is spent on a later one.
declare -A limits=(
    [methods]=270 [steps]=300 [replay]=60 [waits]=60 [noise]=100 [memory]=330
    [shards]=90 [fp8]=90 [audits]=180 [shadows]=120
)
order=(methods steps replay waits noise memory shards fp8 audits shadows)

usage() { sed -n '2,10p' "$0" >&2; exit 2; }
device=cuda toy= results=tests/bench/results wheels= parts=()
while [ $# -gt 0 ]; do
    case $1 in
        --toy) toy=1 ;;
        --device) device=${2:?--device needs a name}; shift ;;
        --results) results=${2:?--results needs a folder}; shift ;;
        --wheels) wheels=${2:?--wheels needs a folder}; shift ;;
        --list) for name in "${order[@]}"; do echo "$name ${limits[$name]}"; done; exit 0 ;;
        *) [ -n "${limits[$1]+known}" ] || usage; parts+=("$1") ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${order[@]}")
if [ -n "$toy" ] && [ "$results" = tests/bench/results ]; then
    results=$(mktemp -d)
fi
mkdir -p "$results"
results=$(cd "$results" && pwd)
python=${PYTHON:-python}
export PYTHONUNBUFFERED=1
if [ -n "$wheels" ]; then
    site=$(mktemp -d)
    "$python" -m pip install -q --no-index --no-deps --no-compile --target "$site" "$wheels"/*.whl || exit 1
    export PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
fi

measure=("$python" -m tests.gpu.measure) bench=("$python" -m tests.bench)
# In this process, with any pytest-xdist or none: the project's own options need a new one.
tests=("$python" -m pytest -o "addopts=-p no:logging" -m "not slow" -q -p no:cacheprovider tests/gpu)
export PRIVCTL_TEST_DEVICE=$device

methods() {
    local chosen="not replays"
    [ -n "$toy" ] && chosen="not replays and (flat and gpt2 or noise or extraction or dp-sgd or waited or bfloat16 or bits or precision or attention)"
    PRIVCTL_TEST_OUTCOMES=$results/methods-cuda.json timeout "$1" "${tests[@]}" -k "$chosen"
}
replay() { PRIVCTL_TEST_OUTCOMES=$results/replay-cuda.json timeout "$1" "${tests[@]}" -k replays; }
steps() {
    local shapes=(--shape "GPT-2 124M" --shape "Llama 1B")
    [ -n "$toy" ] && shapes=(--rounds 1 --shape ResNet)
    timeout "$1" "${bench[@]}" dp-sgd --device "$device" --peer-rounds 1 "${shapes[@]}" --output "$results/dp-sgd-cuda.json"
}
noise() {
    local numbers=1e9
    [ -n "$toy" ] && numbers=1e4
    timeout "$1" "${bench[@]}" gradient-noise --device "$device" --numbers $numbers \
        --output "$results/gradient-noise-cuda.json"
}
shadows() {
    local sizes=(--rounds 2 --widths 64 256)
    [ -n "$toy" ] && sizes=(--rounds 1 --models 4 --widths 8)
    timeout "$1" "${bench[@]}" shadow --device "$device" "${sizes[@]}" --output "$results/shadow-cuda.json"
}
measured() { timeout "$1" "${measure[@]}" "$2" --device "$device" ${toy:+--toy} --output "$results/$2-cuda.json"; }

failed=0 summary=()
for name in "${parts[@]}"; do
    echo "== $name" >&2
    began=$SECONDS
    case $name in
        waits | memory | shards | fp8 | audits) measured "${limits[$name]}" "$name" ;;
        *) "$name" "${limits[$name]}" ;;
    esac
    status=$?
    [ $status -eq 0 ] || failed=$((failed + 1))
    summary+=("$(printf '%-8s rc %3d  %4d s of %d' "$name" $status $((SECONDS - began)) "${limits[$name]}")")
    echo "== ${summary[-1]}" >&2
done
printf '%s\n' "${summary[@]}" "results are in $results" >&2
exit "$failed"
