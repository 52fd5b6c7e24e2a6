#!/usr/bin/env bash
# One round of training for real cameras (plans/real-cameras.md) on one GPU: simulate, train two or three detectors at
# once, evaluate and calibrate. A machine may be lost, mostly one without a running command: call wait again at once,
# with at most 300 seconds. wait and stop copy what there is into a folder.
#
#   bash scripts/train_for_real_cameras.sh begin WORK            starts everything in the background, from a copy of src/
#   bash scripts/train_for_real_cameras.sh wait WORK OUT SECONDS waits for the end, at most SECONDS; copies weights to OUT
#   bash scripts/train_for_real_cameras.sh stop WORK OUT         ends training; evaluation follows, so wait once more
#
# WORK is a new folder with room for the recordings, 10 MB each. The exit code of wait is 0 if all is done, 1 if a part
# has failed or was stopped (WORK/log.txt names its log), 3 if the work goes on, 4 if nothing could be copied. Settings,
# with the values for half an hour of one H200 with 16 cores:
#   SEED=110 RECORDINGS=1000 SECONDS_EACH=1.5   the recordings; 1 000 took 242 s with SHARDS=14 processes
#   EPOCHS_E=18 EPOCHS_S=27 EPOCHS_N=0          of 200 steps, for fate-e-tiny, fate-s-tiny and fate-s-nano (EPOCHS_N=0 leaves it out);
#                                               0.24 and 0.165 s a step for two at once; without a history 0.195 and
#                                               0.125 s, and 0.27, 0.18 and 0.1 s for three
#   OPTIONS_E, OPTIONS_S, OPTIONS_N             model.options of each; EXTRA: further settings of all
#   START=FOLDER                                start from the weights in it, such as OUT of a run that was lost; detectors
#                                               that it does not have start from the bundled weights
#   LR_E=4e-4 LR_S=4e-4 LR_N=1e-3 ALPHA=0.5     learning rates; strategy.first_alpha. A run that was lost at step s of n
#                                               goes on with (1 - s / n) times the rates and ALPHA = 0.5 - 0.4 s / n
set -euo pipefail

usage() {
    echo "expected: begin WORK, wait WORK OUT SECONDS, or stop WORK OUT; given: $*" >&2
    exit 2
}
case "${1:-} $#" in "begin 2" | "run 2" | "wait 4" | "stop 3") ;; *) usage "$@" ;; esac
command=$1 work=$2
[ "$command" != wait ] || [[ $4 =~ ^[0-9]+$ ]] || usage "$@"
if [ "$command" != begin ] && [ ! -e "$work/log.txt" ]; then
    echo "expected: a folder of a run that has begun; given: $work" >&2
    exit 2
fi
seed=${SEED:-110} recordings=${RECORDINGS:-1000} seconds_each=${SECONDS_EACH:-1.5} shards=${SHARDS:-14}
epochs_e=${EPOCHS_E:-18} epochs_s=${EPOCHS_S:-27} epochs_n=${EPOCHS_N:-0}
options_e=${OPTIONS_E:-'{recurrence: time, image_history: true}'} options_n=${OPTIONS_N:-'{}'}
options_s=${OPTIONS_S:-'{longest_memory_s: 2.0, image_history: true}'}
start=
if [ -n "${START:-}" ]; then
    [ -d "$START" ] || { echo "START=$START was given; expected a folder with weights" >&2; exit 2; }
    start=$(realpath "$START")
fi
device=${DEVICE:-cuda}
data=$work/mixed drives=$work/drives runs=$work/runs results=$work/results
export PYTHONPATH=$work/src PYTHONUNBUFFERED=1
fate="python3 -m fate"

say() { echo "$(date +%T) $*" | tee -a "$work/log.txt"; }

await() { # PID DONE FAILED: wait for a process and say how it ended
    if wait "$1"; then say "$2"; else
        say "$3"
        touch "$work/failed"
        return 1
    fi
}

simulate() {
    local given="--profile mixed --recordings $recordings --seconds $seconds_each --seed $seed --device $device --no-preview"
    local processes=()
    for shard in $(seq $shards); do
        OMP_NUM_THREADS=1 $fate simulate "$data" $given --shard "$shard/$shards" --threads 1 > "$work/simulate-$shard.txt" 2>&1 &
        processes+=($!)
    done
    for shard in $(seq $shards); do
        await "${processes[shard - 1]}" "part $shard simulated" "part $shard failed, see $work/simulate-$shard.txt" || true
    done
    [ ! -e "$work/failed" ] || return 1
    $fate simulate "$data" $given > "$work/simulate.txt" 2>&1 &
    await $! "simulated" "the dataset was not completed, see $work/simulate.txt"
    # drives of a street as in the first trainings, on which no round may lose
    $fate simulate "$drives" --recordings 60 --seconds 4 --seed 31 --device "$device" --no-preview > "$work/drives.txt" 2>&1 &
    drives_pid=$!
}

train() { # NAME EPOCHS OPTIONS LR
    local weights="${start:-none}/$1.safetensors"
    [ -e "$weights" ] || weights="$work/src/fate/weights/$1.safetensors"
    say "$1 starts from $weights"
    OMP_NUM_THREADS=2 exec $fate train "mixed/$1-any-rate" data.path="$data" model.transfer=true \
        model.weights="$weights" "model.options=$3" strategy.first_alpha="${ALPHA:-0.5}" strategy.last_alpha=0.1 \
        strategy.hop_share=0.7 optimiser.lr="$4" \
        data.resident_gb=24 data.workers=6 run.validate_every=1000 run.validate_recordings=16 run.epochs="$2" \
        run.device="$device" ${EXTRA:-} --out "$runs/$1" > "$work/train-$1.txt" 2>&1
}

evaluate() { # NAME WEIGHTS
    local given="--device $device -q"
    $fate evaluate "$2" "$data" --split val --hz 20 200 --window 50ms --record --calibrate --groups scene \
        --json "$results/$1-val-50ms.json" $given > "$results/$1-val-50ms.txt" 2>&1
    $fate evaluate "$2" "$data" --split val --hz 200 --record --json "$results/$1-val.json" $given \
        > "$results/$1-val.txt" 2>&1
    $fate evaluate "$2" "$drives" --split all --hz 20 --json "$results/$1-drives.json" $given \
        > "$results/$1-drives.txt" 2>&1
    $fate evaluate "$2" "$data" --split test --hz 20 200 --window 50ms --groups sensor \
        --json "$results/$1-test-50ms.json" $given > "$results/$1-test-50ms.txt" 2>&1
    $fate evaluate "$2" "$data" --split test --hz 200 --json "$results/$1-test.json" $given \
        > "$results/$1-test.txt" 2>&1
    $fate evaluate "$2" "$drives" --split test --hz 200 --json "$results/$1-drives-200.json" $given \
        > "$results/$1-drives-200.txt" 2>&1
}

evaluate_all() { # the new weights that there are, the bundled ones of these detectors, and the averages of both
    await "$drives_pid" "drives simulated" "the drives failed, see $work/drives.txt" || true
    mkdir -p "$results"
    local names=() processes=() number
    for name in fate-e-tiny fate-s-tiny fate-s-nano; do
        [ -e "$runs/$name/last.safetensors" ] || continue
        cp "$work/src/fate/weights/$name.safetensors" "$results/before-$name.safetensors"
        names+=("before-$name")
        cp "$runs/$name/last.safetensors" "$results/$name.part"
        mv "$results/$name.part" "$results/$name.safetensors"
        names+=("$name")
        if python3 "$work/average_weights.py" "$results/average-$name.safetensors" \
            "$results/before-$name.safetensors" 0.5 "$results/$name.safetensors" 0.5 > "$results/average-$name.txt" 2>&1; then
            names+=("average-$name")
        else
            say "$name was not averaged, see $results/average-$name.txt" # another network, for example
        fi
    done
    for name in "${names[@]}"; do
        evaluate "$name" "$results/$name.safetensors" &
        processes+=($!)
    done
    for number in "${!names[@]}"; do
        await "${processes[number]}" "${names[number]} evaluated" \
            "${names[number]} was not evaluated, see $results/${names[number]}-*.txt" || true
    done
}

copy_to() { # OUT: weights in 16 bits, curves and figures
    mkdir -p "$1"
    python3 - "$runs" "$results" "$1" <<'PY' || return 1
import pathlib, sys
import torch
from fate.inference.loading import load_trained
from fate.models.checkpoints import read_card, save_model
runs, results, out = map(pathlib.Path, sys.argv[1:])
names = ("fate-e-tiny", "fate-s-tiny", "fate-s-nano")
for name in (*names, *(f"average-{name}" for name in names)):
    for path in (results / f"{name}.safetensors", runs / name / "last.safetensors"):
        if path.exists():
            card = read_card(path)
            facts = {key: card[key] for key in ("training", "accuracy", "calibration") if key in card}
            save_model(load_trained(path), out / f"{name}.safetensors", facts=facts, dtype=torch.float16)
            break
PY
    for name in fate-e-tiny fate-s-tiny fate-s-nano; do
        [ ! -e "$runs/$name/metrics.jsonl" ] || cp "$runs/$name/metrics.jsonl" "$1/$name-metrics.jsonl"
    done
    cp "$work/log.txt" "$1/"
    [ ! -d "$results" ] || tar czf "$1/results.tgz" -C "$results" --exclude '*.safetensors' . || [ $? = 1 ] # files grow
}

case $command in
begin)
    if [ -e "$work" ] || [ ! -d src/fate ]; then
        echo "expected: a new folder, and the root of the repository as the current one; given: $work in $PWD" >&2
        exit 2
    fi
    mkdir -p "$work" "$runs"
    cp -r src scripts/average_weights.py "$0" "$work/"
    [ "$device" = cpu ] || nvidia-cuda-mps-control -d || true # it may run already
    say "begins"
    setsid nohup bash "$work/$(basename "$0")" run "$work" > "$work/run.txt" 2>&1 < /dev/null &
    ;;
run)
    trap '[ $? = 0 ] || { say "broke off, see $work/run.txt"; touch "$work/failed"; }; touch "$work/ended"' EXIT
    simulate
    train fate-e-tiny "$epochs_e" "$options_e" "${LR_E:-4e-4}" &
    echo $! > "$work/e.pid"
    train fate-s-tiny "$epochs_s" "$options_s" "${LR_S:-4e-4}" &
    echo $! > "$work/s.pid"
    trained=("e fate-e-tiny" "s fate-s-tiny")
    if [ "$epochs_n" != 0 ]; then
        train fate-s-nano "$epochs_n" "$options_n" "${LR_N:-1e-3}" &
        echo $! > "$work/n.pid"
        trained+=("n fate-s-nano")
    fi
    for of in "${trained[@]}"; do
        read -r short name <<< "$of"
        await "$(cat "$work/$short.pid")" "$name trained" "$name was stopped or failed, see $work/train-$name.txt" || true
        rm "$work/$short.pid"
    done
    evaluate_all
    ;;
wait)
    for _ in $(seq "$4"); do [ -e "$work/ended" ] && break || sleep 1; done
    tail -n 2 "$work/log.txt" "$runs"/*/log.txt || true
    copy_to "$3" || { echo "could not copy everything to $3; the work goes on" >&2; exit 4; }
    [ -e "$work/ended" ] || exit 3
    [ ! -e "$work/failed" ] || exit 1
    ;;
stop)
    processes=$(cat "$work"/[esn].pid 2> /dev/null) || true
    if [ -z "$processes" ]; then
        echo "no training runs now, so none was stopped; $work/log.txt says how far the run is" >&2
        exit 1
    fi
    kill -TERM $processes # they save
    sleep 10
    copy_to "$3"
    ;;
esac
