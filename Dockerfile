# FATE on a CPU, for `fate demo` and for recordings in the current folder:
#
#   docker build -t fate .
#   docker run --rm -v "$PWD:/data" fate demo
#   docker run --rm -v "$PWD:/data" fate detect drive.raw --hz 50 --save drive.mp4
#
# The results are written to the current folder by user 1000; add `--user "$(id -u):$(id -g)" -e HOME=/tmp` if you are
# another user.

FROM debian:bookworm-slim

ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update \
    && apt-get install -y --no-install-recommends ca-certificates python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/fate
ENV PATH=/opt/fate/bin:$PATH

# The CPU build of torch comes from PyTorch's own index; the build on PyPI brings 4.5 GB of CUDA libraries.
COPY constraints.txt /src/constraints.txt
RUN pip install -c /src/constraints.txt --index-url https://download.pytorch.org/whl/cpu torch

COPY . /src
RUN pip install -c /src/constraints.txt /src

# A USB camera: uncomment the line below, build again, and give the container the USB bus:
#
#   docker run --rm -it --device=/dev/bus/usb -v "$PWD:/data" fate detect camera --hz 50 --model fate-s-nano
#
# A user other than root may open the camera only if the host has a udev rule for it. Run these once on the host (not
# in the container, which has no udev):
#
#   pip install neuromorphic-drivers && neuromorphic-drivers-install-udev-rules
#
# libusb is compiled into the driver package, so no system package is needed. If the camera is unplugged and plugged in
# again it gets a new device file: use `-v /dev/bus/usb:/dev/bus/usb --device-cgroup-rule='c 189:* rmw'` instead of
# `--device=/dev/bus/usb` to let the container see it.
#
# RUN pip install -c /src/constraints.txt "/src[camera]"

RUN rm -rf /src && useradd --create-home --uid 1000 fate && mkdir /data && chown fate /data
USER fate
WORKDIR /data
ENTRYPOINT ["fate"]
CMD ["demo"]
