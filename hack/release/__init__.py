"""Builds what a release publishes into dist/: `make release`.

    dist/elasticjob_runtime-0.1.0-py3-none-any.whl, elasticjob_runtime-0.1.0.tar.gz     the same for API and operator
    dist/elasticjob-0.1.0.tgz                      the Helm chart
    dist/install.yaml                              the chart with its defaults, for `kubectl apply --server-side -f`
    dist/elasticjob-operator-0.1.0.image.tar       image, for `docker load` and `ctr images import`
    dist/elasticjob-runtime-0.1.0.image.tar        image for several architectures, an OCI layout
    dist/elasticjob-operator-0.1.0.cdx.json        their contents, package by package: CycloneDX SBOMs
    dist/SHA256SUMS                                checksums of all of the above

The file VERSION holds the version; `python -m hack.release version 0.2.0` changes it everywhere and starts its section
of the changelog.
"""
