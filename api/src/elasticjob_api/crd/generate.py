"""Generates files from the models: `python -m elasticjob_api.crd.generate [--check]`, in the root of the
repository.

The files are the CRDs for kubectl in crds/, and the same CRDs as templates of the Helm chart. Helm never upgrades CRDs
in a chart's crds/ folder, but it upgrades templates. The annotation `helm.sh/resource-policy: keep` prevents an
uninstall from deleting the CRD and, with it, all jobs.

--check writes nothing and exits with 1 if a file is not up to date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import yaml

from elasticjob_api.crd.definition import custom_resource_definition, progress_definition

HEADER = "# Generated from elasticjob_api by `make generate`. Do not edit.\n"

CHART_HEAD = """\
{{- if .Values.crds.install }}
apiVersion: %(apiVersion)s
kind: %(kind)s
metadata:
  name: %(name)s
  labels:
    {{- include "elasticjob.labels" . | nindent 4 }}
  {{- if .Values.crds.keep }}
  annotations:
    helm.sh/resource-policy: keep
  {{- end }}
"""
CHART_TAIL = "{{- end }}\n"


class _Dumper(yaml.SafeDumper):
    """Readable YAML: no anchors, and long text folded instead of quoted."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 the library's signature
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = ">" if len(text) > 100 and "\n" not in text else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)


def _dump(data: dict[str, Any]) -> str:
    return yaml.dump(data, Dumper=_Dumper, sort_keys=False, width=120, allow_unicode=True)


def files() -> dict[Path, str]:
    """Path, relative to the root of the repository -> content."""
    return _files_of(custom_resource_definition(), "crd.yaml") | _files_of(progress_definition(), "crd-progress.yaml")


def _files_of(crd: dict[str, Any], template: str) -> dict[Path, str]:
    spec, name = _dump({"spec": crd["spec"]}), crd["metadata"]["name"]
    if "{{" in spec:
        raise ValueError("the CRD contains {{, which Helm would interpret: rephrase it")
    head = CHART_HEAD % {"apiVersion": crd["apiVersion"], "kind": crd["kind"], "name": name}
    return {
        Path("crds", f"{name}.yaml"): HEADER + _dump(crd),
        Path("charts/elasticjob/templates", template): HEADER + head + spec + CHART_TAIL,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m elasticjob_api.crd.generate", description="Write the CRD from the models."
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if a file is not up to date")
    parser.add_argument(
        "--root", type=Path, default=Path(), help="root of the repository (default: the current directory)"
    )
    options = parser.parse_args(arguments)
    stale = {path: text for path, text in files().items() if _read(options.root / path) != text}
    if options.check:
        for path in stale:
            print(f"{path} is not up to date: run `make generate` and commit the result", file=sys.stderr)  # noqa: T201 its output
        return 1 if stale else 0
    for path, text in stale.items():
        (options.root / path).parent.mkdir(parents=True, exist_ok=True)
        (options.root / path).write_text(text, encoding="utf-8")
        print(f"wrote {path}")  # noqa: T201 its output
    return 0


def _read(path: Path) -> str | None:
    return path.read_text(encoding="utf-8") if path.exists() else None


if __name__ == "__main__":
    sys.exit(main())
