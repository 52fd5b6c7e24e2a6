"""What a window costs on a GPU: time from events to boxes, kernels by time, and the difference from float32.

    python scripts/gpu_step_report.py fate-s rvt-b --precisions tf32,float16 --blocks
    python scripts/gpu_step_report.py fate-s-tiny --options '{image_history: true}' --window-ms 5 --events 4000

Each detector has the given options and fresh weights, and each window random events of a 304 × 240 sensor. For every
precision it prints:

- p50 and p99 of a window in ms, from events on the GPU to boxes on the CPU, and the medians of the stages;
- the number of kernels and copies of a window, their total time, and those that take most of it (torch's profiler);
- how far boxes and scores are from those of the plain detector in float32.

``--blocks`` also measures the products and convolutions of fate-s and fate-e for each size of block in
``fate.models.fused.products_gpu``, and the same convolutions by cuDNN, in two minutes. These figures choose ``BLOCKS``
and ``BUSY``.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import yaml
from torch import nn

from fate.encoding.batch import EventBatch
from fate.events.events import Events
from fate.events.window import Window
from fate.inference.streaming_step import StreamingStep, compile_for_streaming
from fate.models.detector import Detector
from fate.models.nms import Detections
from fate.models.zoo import build_model

SENSOR = (240, 304)
#: Rows, inputs and outputs of the products of fate-s, by stride, and of fate-e: its decoder, then its maps.
PRODUCTS = [
    (320, 256, 256), (320, 1024, 256), (80, 512, 512), (80, 2048, 512), (1280, 256, 128), (320, 512, 256),
    (300, 256, 256), (300, 256, 768), (300, 1024, 256), (1680, 256, 1792), (1280, 512, 256), (80, 2048, 256),
]  # fmt: skip
#: Rows, channels and outputs behind a norm.
NORMED = [(320, 256, 768), (320, 256, 1024), (80, 512, 1536), (80, 512, 2048), (300, 256, 288), (300, 256, 1024)]
#: Height, width, channels, outputs and stride of the convolutions; the last ones are those of fate-e, with its gates.
CONVOLUTIONS = [
    (32, 40, 64, 64, 1), (16, 20, 128, 128, 1), (8, 10, 256, 256, 1), (32, 40, 128, 128, 2), (16, 20, 256, 256, 2),
    (32, 40, 128, 256, 1), (128, 160, 64, 64, 2), (32, 40, 256, 256, 1), (16, 20, 256, 256, 1),
    (32, 40, 512, 1024, 1), (16, 20, 512, 1024, 1), (8, 10, 512, 1024, 1),
]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("detectors", nargs="*", default=["fate-s", "rvt-b"])
    parser.add_argument("--precisions", default="tf32,float16")
    parser.add_argument("--options", type=yaml.safe_load, default={}, help="options of the detectors, as YAML")
    parser.add_argument("--events", type=int, default=36_000, help="in a window")
    parser.add_argument("--window-ms", type=float, default=50.0)
    parser.add_argument("--windows", type=int, default=100)
    parser.add_argument("--top", type=int, default=40, help="kernels to print")
    parser.add_argument("--blocks", action="store_true", help="measure sizes of blocks and cuDNN too")
    options = parser.parse_args()
    print(torch.cuda.get_device_name(), "torch", torch.__version__, flush=True)
    window_us = round(1000 * options.window_ms)
    batches = [random_batch(options.events, window_us, seed) for seed in range(8)]
    for name in options.detectors:
        detector = fresh(name, options.options)
        expected = plain(detector, batches[:4])
        for precision in options.precisions.split(","):
            print(f"\n## {name}, {precision}", flush=True)
            start = time.perf_counter()
            step = compile_for_streaming(detector, "cuda", precision=precision)
            print_times(step, batches, options.windows, start)
            print_kernels(step, batches, options.top)
            every = compile_for_streaming(detector, "cuda", precision=precision, confidence=0.0, max_overlap=1.0)
            print_differences([every(batch)[0] for batch in batches[:4]], expected)
    if options.blocks:
        print_blocks()


def fresh(name: str, options: Mapping[str, Any]) -> Detector:
    """A detector with random weights, in which all layers have an effect, also those that begin with (nearly) zeros."""
    torch.manual_seed(0)
    detector = build_model(name, ("car", "pedestrian"), SENSOR, **options).eval().to("cuda")
    with torch.no_grad():
        for key, parameter in detector.named_parameters():
            if key.endswith(("attention_scale", "mlp_scale")):
                parameter.uniform_(0.2, 0.6)
            elif parameter.ndim > 1 and not bool(parameter.any()):
                parameter.normal_(std=0.3 / parameter[0].numel() ** 0.5)
    return detector


def random_batch(count: int, window_us: int, seed: int) -> EventBatch:
    """A window with events at random places and times, on the GPU."""
    draw = np.random.default_rng(seed)
    columns = (
        np.sort(draw.integers(0, window_us, count)),
        draw.integers(0, SENSOR[1], count),
        draw.integers(0, SENSOR[0], count),
        draw.integers(0, 2, count),
    )
    return EventBatch.from_windows([(Window(0, window_us), Events(*columns, sensor=SENSOR))]).to("cuda")


@torch.inference_mode()
def plain(detector: Detector, batches: Sequence[EventBatch]) -> list[Detections]:
    """All boxes of the detector in float32."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    found, state = [], None
    for batch in batches:
        outputs, state = detector(batch, state)
        found += detector.detections(outputs, confidence=0.0, max_overlap=1.0)
    return found


def print_times(step: StreamingStep, batches: Sequence[EventBatch], windows: int, start: float) -> None:
    step(batches[0])
    print(f"ready after {time.perf_counter() - start:.1f} s")
    spent = []
    for index in range(windows + 10):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        step(batches[index % len(batches)])
        spent.append(1e3 * (time.perf_counter() - begin))
    p50, p99 = np.quantile(spent[10:], (0.5, 0.99))
    stages = step.stages([batches[index % len(batches)] for index in range(30)])
    medians = ", ".join(f"{name} {np.median(times):.3f}" for name, times in stages.items())
    print(f"events to boxes: p50 {p50:.3f} ms, p99 {p99:.3f} ms ({medians})", flush=True)


def print_kernels(step: StreamingStep, batches: Sequence[EventBatch], top: int, windows: int = 10) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for index in range(windows):
            step(batches[index % len(batches)])
        torch.cuda.synchronize()
    times: dict[str, list[float]] = defaultdict(list)
    for event in profile.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times[event.name].append(event.time_range.elapsed_us())
    copies = sum(len(each) for name, each in times.items() if name.startswith(("Memcpy", "Memset")))
    total = sum(len(each) for each in times.values())
    busy = sum(map(sum, times.values())) / windows
    print(
        f"{(total - copies) / windows:.1f} kernels and {copies / windows:.1f} copies a window, {busy:.0f} µs together"
    )
    for name, each in sorted(times.items(), key=lambda item: -sum(item[1]))[:top]:
        print(f"{sum(each) / windows:8.1f} µs {len(each) / windows:5.1f} × {np.median(each):6.1f}  {name[:110]}")


def print_differences(found: Sequence[Detections], expected: Sequence[Detections]) -> None:
    """For each box found, the nearest box of its class in float32."""
    pixels, scores = [], []
    for one, other in zip(found, expected, strict=True):
        apart = (one.boxes[:, None] - other.boxes[None]).abs().amax(-1)
        apart = torch.where(one.class_ids[:, None] == other.class_ids[None], apart, torch.inf)
        nearest, index = apart.min(1)
        pixels.append(nearest)
        scores.append((one.scores - other.scores[index]).abs())
    for name, values in (("boxes, px", torch.cat(pixels)), ("scores", torch.cat(scores))):
        quantiles = torch.quantile(values, torch.tensor([0.5, 0.99, 1.0])).tolist()
        print(f"difference of {name}: median {quantiles[0]:.2g}, 99 % {quantiles[1]:.2g}, largest {quantiles[2]:.2g}")


def print_blocks() -> None:
    """µs of each product and convolution in a graph, by size of block, and of cuDNN."""
    from fate.inference.fusing_gpu import ConvActivation
    from fate.models.fused import kernels, products_gpu
    from fate.models.fused.reference import Norm

    def half(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, device="cuda").half()

    blocks = [*products_gpu.BLOCKS, (16, 64), (32, 16), (16, 16)]

    def by_block(work: Callable[[], object]) -> str:
        chosen, parts = products_gpu.BLOCKS, [f"chosen {graph_us(work):5.1f}"]
        for each in blocks:
            products_gpu.BLOCKS = (each,)
            parts.append(f"{each[0]}×{each[1]} {graph_us(work):5.1f}")
        products_gpu.BLOCKS = chosen
        return ", ".join(parts)

    print("\n## blocks, µs")
    with torch.inference_mode():
        for rows, inputs, outputs in PRODUCTS:
            x, weight, bias = half(rows, inputs), half(outputs, inputs), torch.randn(outputs, device="cuda")
            print("product", (rows, inputs, outputs), by_block(lambda: kernels.linear(x, weight, bias)))  # noqa: B023
        for rows, inputs, outputs in NORMED:
            x, weight, bias = half(rows, inputs), half(outputs, inputs), torch.randn(outputs, device="cuda")
            norm = Norm(torch.ones(inputs, device="cuda"), torch.zeros(inputs, device="cuda"), 1e-5)
            line = by_block(lambda: kernels.normed_linear(x, norm, weight, bias))  # noqa: B023
            print("norm and product", (rows, inputs, outputs), line, flush=True)
        for height, width, inputs, outputs, stride in CONVOLUTIONS:
            conv = nn.Conv2d(inputs, outputs, 3, stride, 1).cuda().half().to(memory_format=torch.channels_last)
            image = half(1, inputs, height, width).contiguous(memory_format=torch.channels_last)
            maps, size = image.permute(0, 2, 3, 1).reshape(1, -1, inputs), [(height, width)]
            kernel = conv.weight.permute(0, 2, 3, 1).contiguous()[None, None]
            bias = conv.bias.float()[None]
            line = by_block(lambda: kernels.conv(maps, size, kernel, bias, stride))  # noqa: B023
            alone = graph_us(lambda: nn.functional.conv2d(image, conv.weight, None, stride, 1))  # noqa: B023
            module = ConvActivation(conv, silu=True)
            both = graph_us(lambda: module(image))  # noqa: B023
            print("convolution", (height, width, inputs, outputs, stride), line, end="")
            print(f", cuDNN {alone:.1f}, cuDNN with bias and SiLU {both:.1f}", flush=True)


def graph_us(work: Callable[[], object], times: int = 50) -> float:
    """The time of one call in a CUDA graph of many."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(times):
            work()
    graph.replay()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    graph.replay()
    end.record()
    torch.cuda.synchronize()
    return 1e3 * begin.elapsed_time(end) / times


if __name__ == "__main__":
    main()
