"""Write a video that plays in browsers: H.264, yuv420p, index at the start. Whole or not at all.

The encoder is the ffmpeg that comes with ``imageio-ffmpeg``, fed through a pipe. It writes to a temporary file beside
the target and is renamed at the end, so an error or a killed run never leaves half a video.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fate.errors import FateError
from fate.whole_files import Draft, find_target

QUALITY = 20  # x264's constant rate factor: 0 is lossless, 51 the worst; at 20 single event pixels stay single


class VideoWriter(AbstractContextManager["VideoWriter"]):
    """Writes frames to an ``.mp4``. Use it in a ``with`` block; an error inside discards the file.

    Args:
        path: a name that ends in ``.mp4``; an existing file is replaced.
        fps: frames per second.
        size: ``(height, width)`` of every frame, in pixels. Odd sides get one black row or column, since
            H.264 in browsers needs even ones.

    Example:
        >>> with VideoWriter("drive.mp4", fps=25, size=(480, 608)) as video:   # doctest: +SKIP
        ...     video.write(draw_events(events, factor=2))
    """

    def __init__(self, path: str | os.PathLike[str], fps: float, size: tuple[int, int]) -> None:
        self.size = size
        self.frames = 0
        if Path(path).suffix.lower() != ".mp4":
            raise FateError(f"{path}: videos are written as MP4; give a name that ends in .mp4")
        target = find_target(path, seeks=True)
        self.path = target.path
        if not 0 < fps <= 1000 or not all(0 < side <= 8192 for side in size):
            raise FateError(
                f"a video of {fps} frames a second, (height, width) = {tuple(size)}, was asked for; expected up to 1000"
                " frames, and sides of 1 to 8192 pixels"
            )
        self._draft = Draft(target)
        self._messages = tempfile.TemporaryFile()  # noqa: SIM115  (output of ffmpeg; a pipe could fill up)
        try:
            self._process = self._start(fps)
        except BaseException:
            self._messages.close()
            self._draft.discard()
            raise

    def _start(self, fps: float) -> subprocess.Popen[bytes]:
        from imageio_ffmpeg import get_ffmpeg_exe  # type: ignore[import-untyped]  # noqa: PLC0415  (only for videos)

        try:
            program = str(get_ffmpeg_exe())
        except RuntimeError:  # the wheel of imageio-ffmpeg has a program for common systems only
            raise FateError(
                "no ffmpeg was found to write a video; pip install imageio-ffmpeg on this system brings none, so"
                " install ffmpeg and set IMAGEIO_FFMPEG_EXE to its path"
            ) from None
        height, width = self.size
        # fmt: off
        command = [
            program, "-hide_banner", "-loglevel", "error", "-y",
            "-f", "rawvideo", "-pixel_format", "rgb24", "-video_size", f"{width}x{height}", "-framerate", f"{fps:.6f}",
            "-i", "pipe:0",
            "-vf", "pad=ceil(iw/2)*2:ceil(ih/2)*2,scale=out_color_matrix=bt709:out_range=tv",
            "-c:v", "libx264", "-preset", "veryfast", "-tune", "zerolatency",  # a quarter faster, 8 % larger
            "-crf", str(QUALITY), "-threads", "2", "-pix_fmt", "yuv420p",
            # browsers guess the colour matrix from the size unless it is written down
            "-colorspace", "bt709", "-color_primaries", "bt709", "-color_trc", "bt709", "-color_range", "tv",
            # no dates and versions inside: the same frames give the same bytes
            "-map_metadata", "-1", "-fflags", "+bitexact", "-flags:v", "+bitexact",
            "-movflags", "+faststart", "-f", "mp4", str(self._draft.path),
        ]
        # fmt: on
        try:
            # in a session of its own, so that Ctrl-C reaches us alone and we end it in order
            pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": self._messages}
            return subprocess.Popen(command, **pipes, start_new_session=True)
        except OSError as error:
            raise FateError(f"{self.path}: ffmpeg ({command[0]}) cannot be started ({error.strerror})") from None

    def write(self, frame: NDArray[np.uint8]) -> None:
        """Write the next frame, [H, W, 3] uint8 RGB."""
        if frame.shape != (*self.size, 3) or frame.dtype != np.uint8:
            raise FateError(
                f"{self.path}: frame {self.frames} has shape {frame.shape} and type {frame.dtype};"
                f" expected {(*self.size, 3)} and uint8"
            )
        pipe: Any = self._process.stdin
        try:
            pipe.write(np.ascontiguousarray(frame).data)
        except OSError:  # the encoder has ended; its own message says why
            raise self._failure() from None
        self.frames += 1

    def close(self) -> None:
        """Finish the file and rename it to its target."""
        if not self.frames:
            self.discard()
            raise FateError(f"{self.path}: no frame was written, and a video needs at least one")
        try:
            pipe: Any = self._process.stdin
            pipe.close()
            if self._process.wait() != 0:
                raise self._failure()
            self._draft.commit()
        except OSError as error:
            raise self._failure(error.strerror or str(error)) from None
        finally:
            self.discard()

    def _failure(self, reason: str = "") -> FateError:
        """Return the error for a failed encoder, with the last line of its output."""
        self._process.kill()
        self._process.wait()
        self._messages.seek(0)
        lines = self._messages.read().decode("utf-8", "replace").strip().splitlines()
        said = reason or (lines[-1] if lines else f"exit code {self._process.returncode}")
        return FateError(
            f"{self.path}: the video cannot be written (ffmpeg: {said}); nothing was changed; is the disk full?"
        )

    def discard(self) -> None:
        """End the encoder and remove the unfinished file, whatever state they are in."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None and not self._process.stdin.closed:
            with suppress(OSError):  # buffered frames cannot be written, and are not needed
                self._process.stdin.close()
        self._messages.close()
        self._draft.discard()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()
