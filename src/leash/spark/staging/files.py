"""The file operations that staging needs, for folders where *exclusive create* can be trusted.

fsspec's generic `mode="create"` checks and then writes, so two racing writers can both succeed. Hence an
allow-list: local folders by `link(2)`, and object stores whose conditional write is known to be atomic.
Anything else is refused.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import os
import secrets
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol
from urllib.parse import urlsplit

from leash.errors import ConfigError

# Spark's spelling of a scheme -> fsspec's. Zonal GCS buckets have no conditional create; see the
# documentation.
_REMOTE = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfs", "az": "abfs"}
_BUFFER = 1 << 20


class Writer(Protocol):
    """A file being written."""

    def write(self, data: bytes, /) -> int: ...

    def close(self) -> None: ...


class Files(Protocol):
    """The files of one staging location. Paths are relative to it and use `/`."""

    def read(self, path: str) -> bytes | None:
        """The whole file, or None if it does not exist."""

    def create(self, path: str, data: bytes) -> None:
        """Create a file, atomically and durable on return; FileExistsError if the path is taken."""

    def replace(self, path: str, data: bytes) -> None:
        """Create or replace a file, atomically."""

    def delete(self, path: str) -> None:
        """Delete a file; a missing one is fine."""

    def delete_folder(self, path: str) -> None:
        """Delete a folder and its contents; a missing one is fine."""

    def names(self, folder: str) -> list[str]:
        """The names directly in a folder, sorted; empty if it is missing."""

    def writer(self, path: str) -> Writer:
        """A new file; durable once `close` returns."""

    def reader(self, path: str) -> BinaryIO:
        """Open a file; FileNotFoundError if it does not exist."""


def absolute(location: str) -> str:
    """Make a local path absolute on the driver: executors have another working directory."""
    scheme = urlsplit(location).scheme
    if scheme in ("", "file", "local"):
        return os.path.abspath(_local_path(location))
    if scheme not in _REMOTE:
        raise ConfigError(
            "stagingLocation",
            location,
            "must be a local or mounted folder, s3://, gs:// or abfs://: nothing else is known to create "
            "a file exclusively",
        )
    return location


def open_files(location: str) -> Files:
    """The file operations for a location that `absolute` accepted."""
    scheme = urlsplit(location).scheme
    if scheme in _REMOTE:
        return RemoteFiles(_REMOTE[scheme], location)
    return LocalFiles(absolute(location))


def _local_path(location: str) -> str:
    parts = urlsplit(location)
    if parts.scheme and parts.netloc not in ("", "localhost"):
        raise ConfigError("stagingLocation", location, "a file URL has no host: file:///folder")
    return location if not parts.scheme else parts.path


class LocalFiles:
    """A folder on a disk or a mount with hard links."""

    def __init__(self, root: str) -> None:
        self._root = root

    def read(self, path: str) -> bytes | None:
        try:
            with open(self._full(path), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def create(self, path: str, data: bytes) -> None:
        with self._temporary(path, data) as temporary:
            os.link(temporary, self._full(path))
        self._sync_folder(path)

    def replace(self, path: str, data: bytes) -> None:
        with self._temporary(path, data) as temporary:
            os.replace(temporary, self._full(path))
        self._sync_folder(path)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._full(path))

    def delete_folder(self, path: str) -> None:
        for folder, _, names in os.walk(self._full(path), topdown=False):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(folder, name))
            # Not empty: another process is writing there. The next cleanup deletes it.
            with contextlib.suppress(OSError):
                os.rmdir(folder)

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._full(folder)) if not name.startswith("."))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def writer(self, path: str) -> Writer:
        self._make_folder(path)
        return _Durable(self._full(path))

    def reader(self, path: str) -> BinaryIO:
        return open(self._full(path), "rb")

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path)

    def _make_folder(self, path: str) -> None:
        """Make a folder durably: a power cut must not remove it with its seals."""
        folder = os.path.dirname(path)
        if os.path.isdir(self._full(folder)):
            return
        if folder:
            self._make_folder(folder)
        os.makedirs(self._full(folder), exist_ok=True)
        if folder:
            self._sync_folder(folder)

    @contextlib.contextmanager
    def _temporary(self, path: str, data: bytes) -> Iterator[str]:
        self._make_folder(path)
        folder, name = os.path.split(self._full(path))
        temporary = os.path.join(folder, f".{name}.{secrets.token_hex(8)}")
        try:
            with _Durable(temporary) as file:
                file.write(data)
            yield temporary
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def _sync_folder(self, path: str) -> None:
        handle = os.open(os.path.dirname(self._full(path)), os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class _Durable(io.BufferedWriter):
    """A new local file that reaches the disk when it is closed."""

    def __init__(self, path: str) -> None:
        super().__init__(io.FileIO(path, "x"), _BUFFER)

    def close(self) -> None:
        try:
            if not self.closed:
                self.flush()
                os.fsync(self.fileno())
        finally:
            super().close()


class _Late:
    """Opens an object on the first write, so that a split that fits into its seal needs no upload."""

    def __init__(self, fs: Any, path: str) -> None:
        self._fs, self._path = fs, path
        self._file: Any = None

    def write(self, data: bytes) -> int:
        if self._file is None:
            self._file = self._fs.open(self._path, "wb")
        return int(self._file.write(data))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class RemoteFiles:
    """An object store through fsspec, without listing caches: a stale listing would hide a seal."""

    def __init__(self, protocol: str, location: str) -> None:
        try:
            import fsspec

            kind = fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise ConfigError(
                "stagingLocation", location, f"needs a package that is not installed: {error}"
            ) from None
        if "mode" not in inspect.signature(kind._pipe_file).parameters:
            raise ConfigError(
                "stagingLocation", location, f"this {kind.__module__} cannot create exclusively: upgrade it"
            )
        url = f"{protocol}://{location.partition('://')[2]}"
        named = kind._get_kwargs_from_urls(url)
        self._fs = kind(use_listings_cache=False, skip_instance_cache=True, **named)
        self._root = kind._strip_protocol(url)

    def read(self, path: str) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._full(path)))
        except FileNotFoundError:
            return None

    def create(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(self._full(path), data, mode="create")

    def replace(self, path: str, data: bytes) -> None:
        self._fs.pipe_file(self._full(path), data)

    def delete(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(self._full(path))

    def delete_folder(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm(self._full(path), recursive=True)

    def names(self, folder: str) -> list[str]:
        try:
            found = self._fs.ls(self._full(folder), detail=False, refresh=True)
        except FileNotFoundError:
            return []
        return sorted({name.rstrip("/").rpartition("/")[2] for name in found} - {""})

    def writer(self, path: str) -> Writer:
        return _Late(self._fs, self._full(path))

    def reader(self, path: str) -> BinaryIO:
        file: BinaryIO = self._fs.open(self._full(path), "rb")
        return file

    def _full(self, path: str) -> str:
        return f"{self._root.rstrip('/')}/{path}"
