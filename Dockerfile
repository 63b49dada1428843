# The server with its embedded demo model: `docker build -t fluoroscope .`, or --target cuda for a
# GPU. docs/docker.md says how each is built and run.
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
WORKDIR /build
RUN python3 -m venv /venv
ENV PATH=/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
# The locked packages come before the sources: a change of these installs nothing again.
COPY requirements.lock .
# PyTorch's index of CPU wheels leaves the CUDA libraries out, some gigabytes of them.
ARG TORCH_INDEX=""
# Your own pip.conf (a mirror, a proxy) is read where you pass it, and not kept:
# --secret id=pip,src=pip.conf
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    pip install -r requirements.lock ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
COPY pyproject.toml README.md LICENSE ./
COPY model model
COPY service service
RUN pip install --no-deps --no-build-isolation .

FROM ${BASE} AS runtime
# /models is where weights are mounted, /cache where those of the hub are kept.
RUN useradd --no-log-init --uid 10001 --user-group --create-home fluoroscope \
    && install -d /models \
    && install -d -o 10001 -g 10001 /cache
COPY --from=build /venv /venv
# Two threads: torch would otherwise count the machine's cores and not the container's.
# Two arenas: glibc's allocator would otherwise keep freed memory in one for each thread.
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=2 \
    MALLOC_ARENA_MAX=2 \
    HF_HOME=/cache \
    FLUOROSCOPE_HOST=0.0.0.0 \
    FLUOROSCOPE_PORT=8000
USER 10001:10001
WORKDIR /home/fluoroscope
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["python3", "-c", "import os, urllib.request as web; \
web.build_opener(web.ProxyHandler({})).open( \
f'http://127.0.0.1:{os.environ[\"FLUOROSCOPE_PORT\"]}/health/ready', timeout=4)"]
CMD ["fluoroscope", "serve"]

# Without --gpus this one ends with an error; it never falls back on the processor.
FROM runtime AS cuda
ENV FLUOROSCOPE_DEVICE=cuda \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility

FROM runtime AS cpu
ENV FLUOROSCOPE_DEVICE=cpu
