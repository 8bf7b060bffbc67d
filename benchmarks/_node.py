"""The peers from npm, in the exact versions of `peers/node/package.json`, installed outside of the tree."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from platformdirs import user_cache_path

HERE = Path(__file__).parent / "peers" / "node"


@cache
def modules() -> Path | str:
    """The folder of the installed packages, or why there is none."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        return "node and npm are not installed"
    manifests = [HERE / "package.json", HERE / "package-lock.json"]
    key = hashlib.sha256(b"".join(path.read_bytes() for path in manifests)).hexdigest()[:16]
    folder = user_cache_path("intervalq-benchmarks") / key
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=folder.parent))
        for path in manifests:
            shutil.copy(path, made)
        # Not `npm ci`: it wants the lock to name the optional packages of every platform.
        command = [
            npm,
            "install",
            "--omit-lockfile-registry-resolved",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
        ]
        done = subprocess.run(command, cwd=made, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(made)
            return f"npm install failed: {done.stderr.strip()[-300:]}"
        try:
            made.rename(folder)
        except OSError:  # another run was faster
            shutil.rmtree(made)
    return folder / "node_modules"
