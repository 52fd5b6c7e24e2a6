#!/usr/bin/env bash
# One stretch of training for real cameras (plans/real-cameras.md) on one GPU: simulate, train two detectors at once,
# evaluate and calibrate. A machine may be lost at any time, so every call copies what there is into a folder.
#
#   bash scripts/train_for_real_cameras.sh begin WORK            starts everything in the background, from a copy of src/
#   bash scripts/train_for_real_cameras.sh wait WORK OUT SECONDS waits for the end, at most SECONDS; copies weights to OUT
#   bash scripts/train_for_real_cameras.sh stop WORK OUT         ends training now; its weights are evaluated
#
# WORK needs room for the recordings, 10 MB each. Settings, with the values for half an hour of one H200 with 16 cores:
#   SEED=105 RECORDINGS=1000 SECONDS_EACH=1.5   the recordings; 1 000 took 242 s
#   EPOCHS_E=30 EPOCHS_S=43                     of 200 steps; 0.195 and 0.135 s a step, both at once
#   OPTIONS_E, OPTIONS_S                        model.options of each; EXTRA: further settings of both
set -euo pipefail

command=$1 work=$2
seed=${SEED:-105} recordings=${RECORDINGS:-1000} seconds_each=${SECONDS_EACH:-1.5} shards=14
epochs_e=${EPOCHS_E:-30} epochs_s=${EPOCHS_S:-43}
options_e=${OPTIONS_E:-'{recurrence: time}'} options_s=${OPTIONS_S:-'{length_affine: true}'}
device=${DEVICE:-cuda}
data=$work/mixed runs=$work/runs results=$work/results
export PYTHONPATH=$work/src PYTHONUNBUFFERED=1
fate="python3 -m fate"

say() { echo "$(date +%T) $*" | tee -a "$work/log.txt"; }

simulate() {
    local given="--profile mixed --recordings $recordings --seconds $seconds_each --seed $seed --device $device --no-preview"
    for shard in $(seq $shards); do
        OMP_NUM_THREADS=1 $fate simulate "$data" $given --shard "$shard/$shards" --threads 1 > "$work/simulate-$shard.txt" 2>&1 &
    done
    wait
    $fate simulate "$data" $given > "$work/simulate.txt" 2>&1
    say "simulated"
}

train() { # NAME EPOCHS OPTIONS
    OMP_NUM_THREADS=2 $fate train "mixed/$1-any-rate" data.path="$data" model.transfer=true \
        model.weights="$work/src/fate/weights/$1.safetensors" "model.options=$3" strategy.first_alpha=0.7 \
        data.resident_gb=24 data.workers=6 run.validate_every=1000 run.validate_recordings=16 run.epochs="$2" \
        run.device="$device" ${EXTRA:-} --out "$runs/$1" > "$work/train-$1.txt" 2>&1
    say "$1 trained"
}

evaluate() { # NAME WEIGHTS
    local given="--device $device -q"
    $fate evaluate "$2" "$data" --split val --hz 20 50 100 200 --window 50ms --record --calibrate --groups scene \
        --json "$results/$1-val-50ms.json" $given > "$results/$1-val-50ms.txt" 2>&1
    $fate evaluate "$2" "$data" --split val --hz 20 200 --record --json "$results/$1-val.json" $given \
        > "$results/$1-val.txt" 2>&1
    $fate evaluate "$2" "$data" --split test --hz 20 200 --groups sensor --json "$results/$1-test.json" $given \
        > "$results/$1-test.txt" 2>&1
    say "$1 evaluated"
}

evaluate_all() { # the new weights, and those they began with
    mkdir -p "$results"
    for name in fate-e-tiny fate-s-tiny fate-s-nano; do
        cp "$work/src/fate/weights/$name.safetensors" "$results/before-$name.safetensors"
        evaluate "before-$name" "$results/before-$name.safetensors" &
    done
    for name in fate-e-tiny fate-s-tiny; do
        cp "$runs/$name/last.safetensors" "$results/$name.safetensors"
        evaluate "$name" "$results/$name.safetensors" &
    done
    wait
    touch "$work/done"
}

copy_to() { # OUT: weights in 16 bits, curves and figures
    mkdir -p "$1"
    python3 - "$runs" "$results" "$1" <<'PY'
import pathlib, sys
import torch
from fate.inference.loading import load_trained
from fate.models.checkpoints import read_card, save_model
runs, results, out = map(pathlib.Path, sys.argv[1:])
for name in ("fate-e-tiny", "fate-s-tiny"):
    for path in (results / f"{name}.safetensors", runs / name / "last.safetensors"):
        if path.exists():
            card = read_card(path)
            facts = {key: card[key] for key in ("training", "accuracy", "calibration") if key in card}
            save_model(load_trained(path), out / f"{name}.safetensors", facts=facts, dtype=torch.float16)
            break
PY
    for name in fate-e-tiny fate-s-tiny; do
        [ ! -e "$runs/$name/metrics.jsonl" ] || cp "$runs/$name/metrics.jsonl" "$1/$name-metrics.jsonl"
    done
    [ ! -d "$results" ] || tar czf "$1/results.tgz" -C "$results" --exclude '*.safetensors' .
    cp "$work/log.txt" "$1/"
}

case $command in
begin)
    mkdir -p "$work" "$runs"
    cp -r src "$work/"
    [ "$device" = cpu ] || nvidia-cuda-mps-control -d || true
    say "begins"
    setsid nohup bash "$0" run "$work" > "$work/run.txt" 2>&1 < /dev/null &
    ;;
run)
    simulate
    train fate-e-tiny "$epochs_e" "$options_e" &
    train fate-s-tiny "$epochs_s" "$options_s" &
    wait
    evaluate_all
    ;;
wait)
    for _ in $(seq "$4"); do [ -e "$work/done" ] && break || sleep 1; done
    tail -n 2 "$work/log.txt" "$runs"/*/log.txt || true
    copy_to "$3"
    ;;
stop)
    pkill -TERM -f "fate train mixed" || true # they save; then they are evaluated as usual
    sleep 10
    copy_to "$3"
    ;;
esac
