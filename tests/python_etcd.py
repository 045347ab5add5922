"""What torch's etcd backends import; pip installs it once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hack.cluster.settings import cache_folder

PACKAGES = ("python-etcd==0.4.5", "dnspython==2.7.0", "urllib3==2.5.0")


def python_etcd() -> Path:
    """A folder for PYTHONPATH."""
    folder = cache_folder() / "-".join(name.replace("==", "-") for name in PACKAGES)
    if not folder.exists():
        aside = folder.with_name(f"{folder.name}.unfinished")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target", str(aside)]
        subprocess.run([*pip, *PACKAGES], check=True)
        aside.rename(folder)
    return folder
