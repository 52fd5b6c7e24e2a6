#!/usr/bin/env bash
# One round of training at any rate (plans/any-rate.md) on one GPU: four trainings at once from the same weights, two of
# fate-e-tiny and two of fate-s-tiny, at 20 Hz only and at any rate.
#
#   bash scripts/train_any_rate.sh simulate WORK            simulates the drives and waits for them
#   bash scripts/train_any_rate.sh train WORK               starts the trainings and their evaluation in the background
#   bash scripts/train_any_rate.sh wait WORK OUT SECONDS    waits for the end, at most SECONDS; copies what there is to OUT
#
# Settings: RECORDINGS=640 SHARDS=14 of the drives (seed 13); SEED=0 of the trainings; STEPS_E=1800 STEPS_S=2600;
# OPTIONS_E, OPTIONS_S: model.options of the runs at any rate; ANY: further settings of these runs, such as
# "strategy.hop_share=0.5"; EXTRA: further settings of all runs; DEVICE=cuda. The exit code of wait is 0 if all is done,
# 1 if a part has failed (WORK/log.txt names its log), 3 if the work goes on. Some machines are lost with all that is on
# them if a call fails: add "|| true" there.
set -euo pipefail
case "${1:-} $#" in "simulate 2" | "train 2" | "all 2" | "wait 4") ;; *)
    echo "expected: simulate WORK, train WORK, or wait WORK OUT SECONDS; given: $*" >&2
    exit 2
    ;;
esac
command=$1 work=$2
device=${DEVICE:-cuda} data=$work/drives
export PYTHONPATH=$work/src PYTHONUNBUFFERED=1
fate="python3 -m fate"

say() { echo "$(date +%T) $*" | tee -a "$work/log.txt"; }

simulate() {
    local given="--recordings ${RECORDINGS:-640} --seconds 3 --seed 13 --at-rest 0.25 --device $device --no-preview"
    local processes=() shards=${SHARDS:-14}
    for shard in $(seq "$shards"); do
        OMP_NUM_THREADS=1 $fate simulate "$data" $given --shard "$shard/$shards" --threads 1 > "$work/simulate-$shard.txt" 2>&1 &
        processes+=($!)
    done
    for process in "${processes[@]}"; do wait "$process"; done
    $fate simulate "$data" $given > "$work/simulate.txt" 2>&1
}

train() { # NAME MODEL STEPS SETTINGS...
    local name=$1 model=$2 steps=$3
    shift 3
    OMP_NUM_THREADS=2 $fate train "sim/$model-20hz" data.path="$data" strategy.name=any_rate strategy.labels=truth \
        strategy.consistency_weight=0 model.transfer=true model.weights="$work/src/fate/weights/$model.safetensors" \
        data.resident_gb=10 data.workers=4 run.epoch_steps=200 run.epochs=$((steps / 200)) run.validate_every=1000 \
        run.validate_recordings=16 run.device="$device" run.seed="${SEED:-0}" "$@" ${EXTRA:-} \
        --out "$work/runs/$name" > "$work/train-$name.txt" 2>&1 || fail "$name was not trained, see $work/train-$name.txt"
    say "$name trained"
    evaluate "$name" || fail "$name was not evaluated, see $work/results/$name*.txt"
}

fail() { # WHAT
    say "$1"
    touch "$work/failed"
    exit 1
}

evaluate() { # NAME: at all rates, with windows of 1 / f and of 50 ms
    local given="--split test --device $device --workers 3 -q"
    $fate evaluate "$work/runs/$1/last.safetensors" "$data" $given --hz 20 40 80 100 200 \
        --json "$work/results/$1.json" > "$work/results/$1.txt" 2>&1
    say "$1 evaluated with windows of 1 / f"
    $fate evaluate "$work/runs/$1/last.safetensors" "$data" $given --hz 40 80 100 200 --window 50ms \
        --json "$work/results/$1-50ms.json" > "$work/results/$1-50ms.txt" 2>&1
    say "$1 evaluated with windows of 50 ms"
}

all() {
    mkdir -p "$work/results" "$work/runs"
    local any=(strategy.hop_share=0.7 strategy.first_alpha=0.5 strategy.last_alpha=0.1 ${ANY:-}) only=("strategy.rates=[20]")
    train e-20hz fate-e-tiny "${STEPS_E:-1800}" "model.options={recurrence: time}" "${only[@]}" &
    train e-any fate-e-tiny "${STEPS_E:-1800}" "model.options=${OPTIONS_E:-{recurrence: time, image_history: true\}}" "${any[@]}" &
    train s-20hz fate-s-tiny "${STEPS_S:-2600}" "${only[@]}" &
    train s-any fate-s-tiny "${STEPS_S:-2600}" "model.options=${OPTIONS_S:-{image_history: true\}}" "${any[@]}" &
    wait
    touch "$work/ended"
}

copy_to() { # OUT: weights in 16 bits, learning curves and figures
    mkdir -p "$1"
    python3 - "$work/runs" "$1" <<'PY'
import pathlib, sys
import torch
from fate.inference.loading import load_trained
from fate.models.checkpoints import read_card, save_model
runs, out = map(pathlib.Path, sys.argv[1:])
for path in runs.glob("*/last.safetensors"):
    facts = {"training": read_card(path).get("training")}
    save_model(load_trained(path), out / f"{path.parent.name}.safetensors", facts=facts, dtype=torch.float16)
PY
    tar czf "$1/results.tgz" -C "$work" --exclude '*.safetensors' --exclude '*.ckpt' --exclude drives --exclude src . || [ $? = 1 ]
}

case $command in
simulate)
    mkdir -p "$work"
    rm -rf "$work/src"
    cp -r src "$work/"
    [ "$device" = cpu ] || nvidia-cuda-mps-control -d || true # it may run already
    simulate
    say "simulated"
    ;;
train)
    rm -rf "$work/src" "$work/ended" "$work/failed"
    cp -r src "$0" "$work/"
    setsid nohup bash "$work/$(basename "$0")" all "$work" > "$work/run.txt" 2>&1 < /dev/null &
    ;;
all) all ;;
wait)
    for _ in $(seq "$4"); do [ -e "$work/ended" ] && break || sleep 1; done
    tail -qn 1 "$work"/train-*.txt "$work/log.txt" || true
    copy_to "$3"
    [ -e "$work/ended" ] || exit 3
    [ ! -e "$work/failed" ] || exit 1
    ;;
esac
