"""Generates the messages of the protocol when the package is built."""

from __future__ import annotations

import shutil
from importlib.metadata import version
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).parent
PROTO = "distlock/lock/v1/lock.proto"
# A checkout has the definition once, for all languages. A source distribution brings a copy along.
SOURCES = [HERE / "proto", HERE.parent.parent / "proto"]


def proto_folder() -> Path:
    for folder in SOURCES:
        if (folder / PROTO).is_file():
            return folder
    raise SystemExit(f"{PROTO} is in none of {', '.join(map(str, SOURCES))}")


class BuildWithMessages(build_py):
    """Builds the package, with the generated messages in `distlock.lock.v1`."""

    def run(self) -> None:
        super().run()
        # An editable installation uses the files of the checkout.
        target = HERE / "src" if self.editable_mode else Path(self.build_lib)
        generate(target)


class SourcesWithProto(sdist):
    """Adds the definition of the protocol to a source distribution."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        super().make_release_tree(base_dir, files)
        copy = Path(base_dir) / "proto" / PROTO
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(proto_folder() / PROTO, copy)


def generate(target: Path) -> None:
    from grpc_tools import protoc

    target.mkdir(parents=True, exist_ok=True)
    folder = proto_folder()
    arguments = [f"-I{folder}", f"--python_out={target}", f"--pyi_out={target}", PROTO]
    if protoc.main(["protoc", *arguments]) != 0:
        raise SystemExit(f"{PROTO} cannot be compiled")
    for package in ("lock", "lock/v1"):
        (target / "distlock" / package / "__init__.py").touch()


def dependencies() -> list[str]:
    # Generated messages refuse a library that is older than their generator.
    grpc, messages = version("grpcio-tools"), version("protobuf")
    return [f"grpcio>={grpc}", f"grpcio-status>={grpc}", f"protobuf>={messages}"]


setup(
    cmdclass={"build_py": BuildWithMessages, "sdist": SourcesWithProto},
    install_requires=dependencies(),
)
