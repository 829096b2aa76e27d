"""An environment for each contender, made on demand in benchmarks/envs, from an index or from a folder of wheels."""

import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.process import ROOT, cores

FOLDER = ROOT / "benchmarks" / "envs"
# torch 2.13.0 has a build without CUDA. Looser requirements would bring gigabytes of it.
TORCH = "torch==2.13.0"
COMMON = (TORCH, "pyarrow==26.0.1", "pillow==13.0.0")
OWN = ("numpy==2.4.6", "tokenizers==0.23.3")


class InstallError(Exception):
    """pip could not make the environment. The message is its last line."""


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A library: its module in ``contenders``, its name for people, and what its environment has.

    ``alone`` is True for those that only one process of a machine can use at a time.
    """

    name: str
    label: str
    packages: tuple[str, ...]
    requirements: tuple[str, ...] = ()
    alone: bool = False

    @property
    def python(self) -> Path:
        """The interpreter. Contenders without requirements run in the environment of this process."""
        return self._folder / "bin" / "python" if self.requirements else Path(sys.executable)

    @property
    def installed(self) -> bool:
        """Whether the environment is there, with just these requirements."""
        return not self.requirements or _text(self._folder / "requirements") == self._wanted()

    @property
    def missing(self) -> str:
        """Why there is no environment, as far as it is known."""
        return _text(self._folder / "failed") or "no environment: `make bench` makes it"

    def install(self, wheels: Path | None = None) -> None:
        """Make the environment; with ``wheels``, from the wheels in that folder and in those inside it.

        Then nothing is fetched, and torch is that of the interpreter which makes the environment, whose packages the
        environment sees behind its own.
        """
        if self.installed:
            return
        print(f"making {self._folder} ...", flush=True)
        shutil.rmtree(self._folder, ignore_errors=True)
        venv.create(self._folder, symlinks=True, with_pip=wheels is None)
        if wheels is None:
            command = [str(self.python), "-m", "pip", "install", "--quiet", *self.requirements]
        else:
            _show_packages_of_this_interpreter(self._folder)
            command = _offline(self.python, wheels, [one for one in self.requirements if one != TORCH])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or "pip failed").splitlines()[-1]
            (self._folder / "failed").write_text(f"it could not be installed: {reason}")
            raise InstallError(reason)
        (self._folder / "requirements").write_text(self._wanted())

    @property
    def _folder(self) -> Path:
        return FOLDER / self.name

    def _wanted(self) -> str:
        return "\n".join(self.requirements)


def usable(contenders: Iterable[Contender], *, install: bool, wheels: Path | None = None) -> dict[str, str]:
    """Make the environments, several at a time, and say which are missing and why."""

    def problem(one: Contender) -> str:
        try:
            if install:
                one.install(wheels)
        except Exception as error:
            return f"it could not be installed: {error}"
        return "" if one.installed else one.missing

    chosen = list(contenders)
    with ThreadPoolExecutor(cores()) as threads:
        problems = threads.map(problem, chosen)
        return {one.name: reason for one, reason in zip(chosen, problems, strict=True) if reason}


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _show_packages_of_this_interpreter(folder: Path) -> None:
    """``--system-site-packages`` would show those of the base installation, also if this interpreter is in a venv."""
    places = [place for place in (*site.getsitepackages(), site.getusersitepackages()) if Path(place).is_dir()]
    lines = [f"import site; site.addsitedir({place!r})\n" for place in places]
    (inside,) = (folder / "lib").glob("python*/site-packages")
    (inside / "zz-machine.pth").write_text("".join(lines))


def _offline(python: Path, wheels: Path, requirements: list[str]) -> list[str]:
    folders = [wheels, *sorted(place for place in wheels.rglob("*") if place.is_dir())]
    links = [part for place in folders for part in ("--find-links", str(place))]
    pip = [sys.executable, "-m", "pip", "--python", str(python)]
    return [*pip, "install", "--quiet", "--no-index", "--no-compile", *links, *requirements]


CONTENDERS = (
    Contender(name="midepoch", label="midepoch", packages=("torch", "pyarrow")),
    Contender(name="pyarrow", label="pyarrow, a loop", packages=("pyarrow",)),
    Contender(
        name="datasets",
        label="datasets + StatefulDataLoader",
        packages=("datasets", "torchdata"),
        requirements=(*COMMON, *OWN, "datasets==5.2.0", "torchdata==0.11.0", "transformers==5.22.2"),
    ),
    Contender(
        name="litdata",
        label="LitData",
        packages=("litdata",),
        requirements=(*COMMON, *OWN, "litdata==0.2.76", "polars==2.1.0"),
    ),
    Contender(
        name="streaming",
        label="MosaicML Streaming",
        packages=("mosaicml-streaming",),
        # it wants an older NumPy and transformers, which wants older tokenizers
        requirements=(TORCH, "pyarrow", "pillow", "tokenizers", "mosaicml-streaming==0.13.0"),
        alone=True,  # its shared memory has the same names for all
    ),
    Contender(
        name="grain",
        label="Grain + ArrayRecord",
        packages=("grain", "array_record"),
        requirements=(*COMMON, *OWN, "grain==0.2.18", "array_record==0.8.6"),
    ),
    Contender(
        name="webdataset",
        label="WebDataset",
        packages=("webdataset",),
        requirements=(*COMMON, *OWN, "webdataset==1.0.2"),
    ),
    Contender(
        name="lance",
        label="LanceDB StreamingDataset",
        packages=("lancedb",),
        requirements=(*COMMON, *OWN, "lancedb==0.40.0"),
    ),
    Contender(
        name="dataloader_utils",
        label="torch-dataloader-utils",
        packages=("torch-dataloader-utils",),
        requirements=(*COMMON, *OWN, "torch-dataloader-utils==0.2.0"),
    ),
)
