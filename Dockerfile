# Three images from one file: operator, runtime (what puts the launcher into any image), trainer (example base image).
#
#     docker build --target operator -t elasticjob-operator .
#
# BASE_IMAGE is a Debian with apt: a published one, pinned here by the digest of its index for all architectures, or one made from packages
# alone where there is no registry (`python -m hack.images build`). Torch is Debian's: CPU, with gloo. Layers go from what seldom changes to
# what often does.
ARG BASE_IMAGE=docker.io/library/debian:trixie-slim@sha256:d7e12182ce18b85b93007c1dedf31f2d29e01ccf3182cc4017c709b6259bc132
# Fixed, so that the same packages give the same bytes; and with it, byte code is valid by its source's hash, not by its time.
ARG SOURCE_DATE_EPOCH=1767225600


# Python, and the user that everything runs as.
FROM ${BASE_IMAGE} AS python
ARG SOURCE_DATE_EPOCH
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3 \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/apt /var/log/*.log \
 && echo 'elasticjob:x:65532:65532:ElasticJob:/tmp:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'elasticjob:x:65532:' >> /etc/group
ENV PYTHONUNBUFFERED=1


# pip, for the stages that install; none of it is in an image.
FROM python AS build
# Where a machine reaches its package index in a way of its own: the path of a pip.conf inside the build.
ARG PIP_CONFIG_FILE
ARG SOURCE_DATE_EPOCH
ENV PIP_CONFIG_FILE=$PIP_CONFIG_FILE PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore \
    SOURCE_DATE_EPOCH=$SOURCE_DATE_EPOCH DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-pip python3-setuptools python3-venv python3-wheel
WORKDIR /src


# The only machine code of the runtime image, a static cp. RUNTIME_ARCH, as Debian names it, is the architecture that the image is for: by default
# this one. The file comes out of Debian's package and is not run here, so any architecture can be built on any other.
FROM build AS busybox
ARG RUNTIME_ARCH
RUN arch=${RUNTIME_ARCH:-$(dpkg --print-architecture)} \
 && dpkg --add-architecture "$arch" \
 && apt-get update \
 && apt-get download "busybox-static:$arch" \
 && dpkg-deb --extract busybox-static_*.deb package \
 && install -D "$(find package -path '*/bin/busybox')" /out/install/cp \
 && install -D -m 644 package/usr/share/doc/busybox-static/copyright /out/usr/share/doc/busybox/copyright


# The runtime: plain files that any Python >= 3.10 can import from a read-only volume, with the metadata that makes torchrun find its plug-in, and
# with byte code for the Python that this stage has. The root of the image is what a worker container gets mounted.
FROM build AS runtime-files
COPY trainer-runtime ./trainer-runtime
RUN pip install --no-deps --no-build-isolation --no-compile --target /out/python ./trainer-runtime \
 && rm -rf /out/python/bin \
 && python3 -m compileall -q -s /out --invalidation-mode unchecked-hash /out/python \
 && cp trainer-runtime/launch.py /out/launch.py \
 && mkdir -p /out/bin \
 && printf '#!/bin/sh\nexec "${PYTHON:-python3}" -m elasticjob_runtime "$@"\n' > /out/bin/elasticrun \
 && chmod 755 /out/bin/elasticrun


# Mounted as an image volume, or copied by an init container to the folder it is given: docs/design/0015-injection.md.
FROM scratch AS runtime
COPY --from=busybox /out /
COPY --from=runtime-files /out /
USER 65532:65532
ENTRYPOINT ["/install/cp", "-R", "/launch.py", "/python", "/bin"]
CMD ["/target"]


# The operator's dependencies: a layer of their own, which a change in our sources leaves as it is.
FROM build AS operator-dependencies
COPY operator/requirements.txt ./
RUN python3 -m venv --without-pip /opt/operator \
 && pip --python /opt/operator/bin/python install --no-compile --require-hashes --only-binary :all: -r requirements.txt \
 && find /opt/operator -type d -name tests -prune -exec rm -rf {} + \
 && /opt/operator/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/operator/lib


FROM operator-dependencies AS operator-files
COPY trainer-runtime ./trainer-runtime
COPY api ./api
COPY operator ./operator
RUN pip wheel --no-deps --no-build-isolation -w /wheels ./trainer-runtime ./api ./operator \
 && pip --python /opt/operator/bin/python install --no-deps --no-index --no-compile --root /out /wheels/*.whl \
 && python3 -m compileall -q -s /out --invalidation-mode unchecked-hash /out


FROM python AS operator
COPY --from=operator-dependencies /opt/operator /opt/operator
COPY --from=operator-files /out /
ENV PATH=/opt/operator/bin:/usr/bin:/bin
USER 65532:65532
ENTRYPOINT ["elasticjob-operator"]


# Torch without what a CPU never runs: tests, and ROCm with its compiler (of which only a plug-in of UCX knows).
FROM python AS torch
ARG SOURCE_DATE_EPOCH
ARG DEBIAN_FRONTEND=noninteractive
RUN printf 'path-exclude=%s\n' \
      '/usr/lib/libtorch-test/*' '/usr/lib/python3/dist-packages/torch/bin/test_*' '/usr/lib/*/libLLVM*' '/usr/lib/*/libamd*' '/usr/lib/*/libhsa*' '/usr/lib/*/ucx/*rocm*' \
      '/usr/share/doc/*/examples/*' > /etc/dpkg/dpkg.cfg.d/elasticjob \
 && apt-get update \
 && apt-get install -y --no-install-recommends python3-torch python3-numpy \
 && find /usr/lib/python3/dist-packages -type d -name tests -prune -exec rm -rf {} + \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/apt /var/log/*.log


# For tests: an image that never heard of us.
FROM torch AS plain
CMD ["python3"]


# For the tests of the examples: the frameworks that they use, and nothing of ours. Torch is Debian's, so pip may not look for what it needs.
FROM build AS frameworks-files
COPY constraints.txt ./
RUN pip install --no-compile --no-deps --ignore-installed --break-system-packages --root /out -c constraints.txt \
      accelerate anyio click filelock fsspec h11 hf-xet httpcore2 httpx2 huggingface_hub idna lightning lightning-utilities packaging psutil \
      pytorch-lightning pyyaml regex s3torchconnector s3torchconnectorclient safetensors tokenizers torchmetrics tqdm transformers truststore \
      typer typing_extensions
# moto stands in for S3.
RUN pip install --no-compile --no-deps --ignore-installed --break-system-packages --root /out -c constraints.txt \
      blinker boto3 botocore certifi cffi charset-normalizer cryptography flask flask-cors itsdangerous jinja2 jmespath markupsafe moto \
      py-partiql-parser pycparser python-dateutil requests responses s3transfer six urllib3 werkzeug xmltodict


FROM torch AS frameworks
ARG SOURCE_DATE_EPOCH
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install -y --no-install-recommends python-is-python3 python3-torchvision \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/apt /var/log/*.log
COPY --from=frameworks-files /out /
ENV HOME=/tmp
CMD ["python3"]


# The handwritten digits: one file of scikit-learn, which with SciPy would be 200 MB.
FROM build AS digits
COPY constraints.txt ./
RUN pip download --no-deps -d /wheels -c constraints.txt scikit-learn \
 && python3 -m zipfile -e /wheels/scikit_learn-*.whl /wheels/content \
 && mkdir -p /out/workspace/data \
 && cp /wheels/content/sklearn/datasets/data/digits.csv.gz /wheels/content/sklearn/datasets/descr/digits.rst /out/workspace/data/ \
 && rm -rf /wheels


FROM build AS trainer-files
COPY trainer-runtime ./trainer-runtime
RUN pip install --no-deps --no-build-isolation --no-compile --break-system-packages --root /out ./trainer-runtime \
 && python3 -m compileall -q -s /out --invalidation-mode unchecked-hash /out/usr


# python-etcd is what torch's own etcd backends import.
FROM torch AS trainer
ARG DEBIAN_FRONTEND=noninteractive
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3-etcd \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* /var/log/apt /var/log/*.log
COPY --from=digits /out /
COPY --from=trainer-files /out /
COPY examples/digits /workspace/examples/digits
WORKDIR /workspace
ENV HOME=/tmp DIGITS_CSV=/workspace/data/digits.csv.gz
USER 65532:65532
CMD ["elasticrun", "--help"]
