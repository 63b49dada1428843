# The server with its embedded demo model. `docker build -t fluoroscope .`
ARG BASE=python:3.11-slim
FROM ${BASE} AS build
WORKDIR /app
RUN python3 -m venv /venv
ENV PATH=/venv/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
COPY requirements.lock .
# An index of CPU wheels keeps the image small: --build-arg TORCH_INDEX=<index URL>.
ARG TORCH_INDEX=""
RUN pip install -r requirements.lock ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"}
COPY pyproject.toml README.md LICENSE ./
COPY model model
COPY service service
RUN pip install --no-deps --no-build-isolation .

FROM ${BASE}
RUN useradd --uid 10001 --create-home fluoroscope
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    OMP_NUM_THREADS=2 \
    MALLOC_ARENA_MAX=2 \
    FLUOROSCOPE_HOST=0.0.0.0 \
    FLUOROSCOPE_PORT=8000
USER 10001
WORKDIR /home/fluoroscope
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s \
    CMD ["python3", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health/ready', timeout=4)"]
# Beyond loopback the server asks for a key: docker run -e FLUOROSCOPE_KEY=… -p 8000:8000 fluoroscope
CMD ["fluoroscope", "serve"]
