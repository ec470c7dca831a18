"""The pinned source and the patch series: a toy project without network, then the real one."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import build_backend
import source
from source import Project, SourceError
from tools import patch_headers, vendor

ROOT = Path(__file__).resolve().parents[2]

KEEP = ("CMakeLists.txt", "src")
GRAPH = "".join(f"line {i}\n" for i in range(1, 31))
FILES = {
    "CMakeLists.txt": "project(toy)\n",
    "src/llama-graph.cpp": GRAPH,
    "src/llama-batch.cpp": GRAPH.replace("line", "batch"),
    "tests/not-needed.cpp": "\n",
}
MESSAGE = """graph : {subject}

The toy cannot do it otherwise.

Reason: embedding-specific
Forwarded: not-needed
Remove-when: never
Test: tests/test_toy.py
"""


def write_sdist(file: Path, members: Mapping[str, str], link: str | None = None) -> None:
    """A tar.gz as a package index serves it; `link` is the name of a symbolic link in it."""
    with tarfile.open(file, "w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
        if link:
            info = tarfile.TarInfo(link)
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/hostname"
            archive.addfile(info)


def write_pin(project: Project, sha256: str, version: str = "1.0") -> None:
    keep = ", ".join(f'"{name}"' for name in KEEP)
    project.pin_file.write_text(
        f'name = "toy"\nversion = "{version}"\nsha256 = "{sha256}"\n'
        f'folder = "vendor/llama.cpp"\nkeep = [{keep}]\nbindings = ["toy", "LICENSE.md"]\n'
    )


def members(files: Mapping[str, str], version: str = "1.0") -> dict[str, str]:
    """Return the archive's files: those of llama.cpp, and its bindings."""
    top = f"toy-{version}"
    beside = {f"{top}/toy/__init__.py": "import ctypes\n", f"{top}/setup.py": "\n"}
    return {f"{top}/vendor/llama.cpp/{name}": text for name, text in files.items()} | beside


@pytest.fixture
def toy(tmp_path: Path) -> Project:
    """A project whose pinned source distribution is in the cache, with no patches yet."""
    project = Project(tmp_path / "toy")
    for folder in ("vendor/cache", "patches", "pyselfspec/native", "tests"):
        (project.root / folder).mkdir(parents=True)
    (project.root / "tests" / "test_toy.py").touch()
    (project.root / "pyselfspec" / "native" / "selfspec.cpp").write_text("// ours\n")
    sdist = project.cache / "toy-1.0.tar.gz"
    write_sdist(sdist, members(FILES))
    write_pin(project, source.sha256_of(sdist))
    return project


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that stands for the package index: `download` copies from it."""
    served = tmp_path / "index"
    served.mkdir()

    def download(requirement: str, folder: Path) -> Path:
        name = requirement.replace("==", "-") + ".tar.gz"
        return (folder / name).write_bytes((served / name).read_bytes()) and folder / name

    monkeypatch.setattr(source, "download", download)
    yield served


def run(project: Project, *arguments: str) -> Result:
    return CliRunner().invoke(vendor.main, ["--root", str(project.root), *arguments])


def succeed(project: Project, *arguments: str) -> str:
    result = run(project, *arguments)
    assert result.exit_code == 0, result.output
    return result.output


def commit_change(project: Project, name: str, old: str, new: str, subject: str) -> None:
    """A new patch: change one place in vendor/work and commit it."""
    work = project.root / "vendor" / "work"
    file = work / name
    file.write_text(file.read_text().replace(old, new))
    vendor.git(
        work, "commit", "-a", "-m", MESSAGE.format(subject=subject), identity=vendor.IDENTITY
    )


@pytest.fixture
def series(toy: Project) -> Project:
    """The toy with two patches, exported from a work repository that holds them."""
    succeed(toy, "fetch")
    commit_change(toy, "src/llama-graph.cpp", "line 3\n", "line 3\nselfspec_a();\n", "call a")
    commit_change(toy, "src/llama-graph.cpp", "line 20\n", "line 20\nselfspec_b();\n", "call b")
    succeed(toy, "export")
    return toy


def patch_bytes(project: Project) -> dict[str, bytes]:
    return {patch.name: patch.read_bytes() for patch in project.patches}


# --- source.py: archive ---------------------------------------------------------------------------


def test_only_the_kept_part_is_unpacked(toy: Project) -> None:
    tree = source.update_tree(toy)
    assert [name.as_posix() for name in source.files_of(tree)] == [
        "CMakeLists.txt",
        "bindings/toy/__init__.py",
        "src/llama-batch.cpp",
        "src/llama-graph.cpp",
    ]


@pytest.mark.parametrize(
    "name", ["../evil", "/tmp/evil", "toy-1.0/vendor/llama.cpp/src/../../../../../evil", "a\\..\\b"]
)
def test_path_that_leads_outside_is_refused(toy: Project, tmp_path: Path, name: str) -> None:
    sdist = tmp_path / "bad.tar.gz"
    write_sdist(sdist, {name: "evil"})
    with pytest.raises(SourceError, match="unsafe path"):
        source.unpack(sdist, "vendor/llama.cpp", KEEP, tmp_path / "out")
    assert not list(tmp_path.rglob("evil"))


def test_link_is_refused(toy: Project, tmp_path: Path) -> None:
    sdist = tmp_path / "bad.tar.gz"
    write_sdist(sdist, {}, link="toy-1.0/vendor/llama.cpp/src/link")
    with pytest.raises(SourceError, match="not a plain file"):
        source.unpack(sdist, "vendor/llama.cpp", KEEP, tmp_path / "out")


def test_served_file_with_another_hash_is_neither_built_nor_kept(toy: Project, index: Path) -> None:
    (toy.cache / "toy-1.0.tar.gz").unlink()
    write_sdist(index / "toy-1.0.tar.gz", members({**FILES, "src/extra.cpp": "\n"}))
    with pytest.raises(SourceError, match=r"has sha256 [0-9a-f]{64}, but vendor/pin.toml says"):
        source.update_tree(toy)
    assert not list(toy.cache.iterdir())
    assert not toy.tree.exists()


def test_damaged_cache_is_downloaded_again(toy: Project, index: Path) -> None:
    cached = toy.cache / "toy-1.0.tar.gz"
    (index / cached.name).write_bytes(cached.read_bytes())
    cached.write_bytes(cached.read_bytes()[:-9])
    assert source.sha256_of(source.fetch_sdist(toy)) == toy.pin.sha256


def test_failed_download_is_one_sentence(
    toy: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    with pytest.raises(SourceError, match=r"Could not download the source of toy==1.0: check") as e:
        source.download("toy==1.0", tmp_path)
    assert "\n" not in str(e.value)


def test_inner_pip_does_not_take_our_backend_for_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both names that pip has used; inherited, they make pip refuse the downloaded project."""
    seen: dict[str, str] = {}

    def fake_run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        seen.update(options["env"])
        (tmp_path / "toy-1.0.tar.gz").touch()
        return subprocess.CompletedProcess(command, 0, "", "")

    for name in ("PEP517_BACKEND_PATH", "_PYPROJECT_HOOKS_BACKEND_PATH", "PIP_INDEX_URL"):
        monkeypatch.setenv(name, "value")
    monkeypatch.setattr(subprocess, "run", fake_run)
    assert source.download("toy==1.0", tmp_path) == tmp_path / "toy-1.0.tar.gz"
    assert "PIP_INDEX_URL" in seen
    assert not {"PEP517_BACKEND_PATH", "_PYPROJECT_HOOKS_BACKEND_PATH"} & seen.keys()


def test_pin_with_a_missing_key_is_refused(toy: Project) -> None:
    toy.pin_file.write_text('name = "toy"\n')
    with pytest.raises(SourceError, match="exactly name, version"):
        _ = toy.pin


# --- source.py: tree ------------------------------------------------------------------------------


def test_matching_stamp_means_nothing_is_done(series: Project, index: Path) -> None:
    source.update_tree(series)
    (series.cache / "toy-1.0.tar.gz").unlink()  # a second unpack would need it
    source.update_tree(series)


def test_unfinished_tree_is_made_again(series: Project) -> None:
    tree = source.update_tree(series)
    (tree / source.STAMP).unlink()
    (tree / "src" / "llama-graph.cpp").write_text("half")
    source.update_tree(series)
    assert "selfspec_b" in (tree / "src" / "llama-graph.cpp").read_text()


def test_only_changed_files_are_rewritten(series: Project) -> None:
    tree = source.update_tree(series)
    (tree / "src" / "stale.cpp").touch()
    before = {name: (tree / name).stat().st_mtime_ns for name in source.files_of(tree)}
    series.patches[-1].unlink()
    source.update_tree(series)
    after = {name: (tree / name).stat().st_mtime_ns for name in source.files_of(tree)}
    changed = {name.name for name in before if after.get(name) != before[name]}
    assert changed == {"llama-graph.cpp", "stale.cpp"}
    assert not (tree / "src" / "stale.cpp").exists()


@pytest.mark.parametrize("change", ["shifted", "different", "already applied"])
def test_patch_that_does_not_fit_exactly_is_refused(series: Project, change: str) -> None:
    text = {
        "shifted": "new first line\n" + GRAPH,
        "different": GRAPH.replace("line 4", "line four"),
        "already applied": GRAPH.replace("line 3\n", "line 3\nselfspec_a();\n"),
    }[change]
    sdist = series.cache / "toy-1.0.tar.gz"
    write_sdist(sdist, members({**FILES, "src/llama-graph.cpp": text}))
    write_pin(series, source.sha256_of(sdist))
    with pytest.raises(SourceError, match=r"0001-graph-call-a.patch does not apply \(.* line 1 is"):
        source.update_tree(series)
    assert not series.tree.exists()


def test_patch_that_adds_a_file_is_refused(series: Project) -> None:
    patch = series.patches[0]
    text = patch.read_bytes().split(b"diff --git")[0]
    text += (
        b"diff --git a/src/new.cpp b/src/new.cpp\nnew file mode 100644\nindex 0000000..3367afd\n"
    )
    text += b"--- /dev/null\n+++ b/src/new.cpp\n@@ -0,0 +1 @@\n+new\n"
    patch.write_bytes(text)
    with pytest.raises(SourceError, match="does not apply"):
        source.update_tree(series)


def test_patch_without_hunks_is_refused(series: Project) -> None:
    series.patches[0].write_text("Subject: nothing\n")
    with pytest.raises(SourceError, match="not a readable patch"):
        source.update_tree(series)


# --- source.py: build id --------------------------------------------------------------------------


def test_build_id_depends_on_pin_patches_and_native_code(series: Project) -> None:
    ids = [source.build_id(series)]
    native = series.root / "pyselfspec" / "native"
    for file in (series.pin_file, series.patches[0], native / "selfspec.cpp"):
        file.write_text(file.read_text() + "\n")
        ids.append(source.build_id(series))
    (native / "selfspec.cpp").rename(native / "selfspec-kv.cpp")
    ids.append(source.build_id(series))
    (native / "kernels").mkdir()
    for name in ("floats.cpp", "kernels.cmake"):
        (native / "kernels" / name).touch()
        ids.append(source.build_id(series))
    (native / "notes.orig").touch()
    assert len(set(ids)) == 7
    assert source.build_id(series) == ids[-1]
    assert all(text.startswith("1.0-") and len(text) == 16 for text in ids)


def test_own_tree_is_used_as_it_is(series: Project, tmp_path: Path) -> None:
    work = series.root / "vendor" / "work"
    prepared = source.prepare(series, {source.LOCAL_SOURCE_VARIABLE: str(work)})
    assert prepared.path == work
    assert prepared.build_id == source.build_id(series) + "-local"
    assert not series.tree.exists()


def test_own_tree_must_be_a_patched_llama_cpp(toy: Project, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"not a llama.cpp source tree"):
        source.prepare(toy, {source.LOCAL_SOURCE_VARIABLE: str(tmp_path)})
    plain = source.update_tree(toy)
    with pytest.raises(SourceError, match="lacks the patches"):
        source.prepare(toy, {source.LOCAL_SOURCE_VARIABLE: str(plain)})


# --- build_backend.py -----------------------------------------------------------------------------


def test_an_older_python_is_told_in_one_sentence() -> None:
    """Without the packages of the build, too, for pip may not have got as far."""
    code = (
        "import sys; sys.version_info = (3, 10, 12, 'final', 0); sys.path.insert(0, 'vendor');"
        "missing = 'tomllib', 'patch_ng', 'scikit_build_core';"
        "sys.modules.update(dict.fromkeys(missing)); import build_backend"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "pyselfspec needs Python 3.11 or newer, this is 3.10.\n"


def test_systems_that_nothing_was_built_for_are_refused_by_name() -> None:
    for platform, machine in (("cygwin", "x86_64"), ("win32", "ARM64"), ("win32", "x86")):
        with pytest.raises(SourceError, match=f"this is {platform} on {machine}") as e:
            build_backend.check_platform(platform, machine)
        assert "\n" not in str(e.value) and "WSL" in str(e.value)
    for platform, machine in (("linux", "aarch64"), ("darwin", "arm64"), ("win32", "AMD64")):
        build_backend.check_platform(platform, machine)


def test_windows_gets_the_compiler_that_was_tried() -> None:
    given = build_backend.platform_settings(ROOT, environ={}, platform="win32")
    toolchain = given["cmake.define.CMAKE_TOOLCHAIN_FILE"]
    assert isinstance(toolchain, str) and Path(toolchain).is_file()
    build_backend.check_compiler({"PATH": ""}, settings=given)
    for chosen in ("-DCMAKE_CXX_COMPILER=clang-cl", "-DCMAKE_TOOLCHAIN_FILE=mine.cmake"):
        environ = {"CMAKE_ARGS": chosen}
        assert build_backend.platform_settings(ROOT, environ=environ, platform="win32") == {}
    mine = ["cmake.define.CMAKE_TOOLCHAIN_FILE"]
    assert build_backend.platform_settings(ROOT, mine, environ={}, platform="win32") == {}
    for platform in ("linux", "darwin"):
        assert build_backend.platform_settings(ROOT, environ={}, platform=platform) == {}


def test_missing_compiler_is_said_before_cmake_runs(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="No C\\+\\+ compiler found") as e:
        build_backend.check_compiler({"PATH": str(tmp_path)})
    assert "\n" not in str(e.value)
    with pytest.raises(SourceError, match="looked for no-such-compiler"):
        build_backend.check_compiler({"PATH": str(tmp_path), "CXX": "no-such-compiler -m64"})
    cross = {"PATH": str(tmp_path), "CMAKE_ARGS": "-DCMAKE_CXX_COMPILER=/opt/cross/c++"}
    build_backend.check_compiler(cross)
    (tmp_path / "clang++").touch(mode=0o755)
    build_backend.check_compiler({"PATH": str(tmp_path)})


# --- tools/vendor.py ------------------------------------------------------------------------------


def test_apply_then_export_changes_nothing(series: Project) -> None:
    before = patch_bytes(series)
    assert list(before) == ["0001-graph-call-a.patch", "0002-graph-call-b.patch"]
    assert all(b"\nBase: toy==1.0\nReason: " in text for text in before.values())
    succeed(series, "fetch", "--force")
    succeed(series, "apply")
    first = vendor.series_of(series.root / "vendor" / "work")
    succeed(series, "export")
    assert patch_bytes(series) == before
    succeed(series, "fetch", "--force")
    succeed(series, "apply")
    assert vendor.series_of(series.root / "vendor" / "work") == first
    succeed(series, "check")


@pytest.mark.parametrize("command", [("fetch",), ("bump", "1.1")])
def test_work_is_not_thrown_away(series: Project, command: tuple[str, ...]) -> None:
    result = run(series, *command)
    assert result.exit_code == 1
    assert "repeat with --force" in result.output
    assert series.pin.version == "1.0"
    assert len(vendor.series_of(series.root / "vendor" / "work")) == 2


def test_edit_changes_the_patch_it_names(series: Project) -> None:
    before = patch_bytes(series)
    file = series.root / "vendor" / "work" / "src" / "llama-graph.cpp"
    file.write_text(file.read_text().replace("selfspec_a()", "selfspec_a(il)"))
    assert run(series, "export").exit_code == 1, "uncommitted changes must not be lost"
    succeed(series, "edit", "1")
    succeed(series, "export")
    after = patch_bytes(series)
    assert b"+selfspec_a(il);" in after["0001-graph-call-a.patch"]
    assert b"\nDate: Sat, 1 Jan 2000" in after["0001-graph-call-a.patch"]

    def hunks(text: bytes) -> bytes:
        return text[text.index(b"@@ -") :]

    second = "0002-graph-call-b.patch"
    assert hunks(after[second]) == hunks(before[second])
    succeed(series, "check")


def test_edit_says_what_is_wrong(series: Project) -> None:
    assert "the series has 2 patches" in run(series, "edit", "3").output
    assert "Nothing has changed" in run(series, "edit", "1").output


def test_check_finds_a_patch_that_was_edited_by_hand(series: Project) -> None:
    patch = series.patches[0]
    patch.write_bytes(patch.read_bytes().replace(b"@@\n", b"@@ made up\n", 1))
    result = run(series, "check")
    assert result.exit_code == 1
    assert "patches/0001-graph-call-a.patch differs from a fresh export" in result.output


@pytest.mark.parametrize("key", patch_headers.TRAILERS)
def test_every_trailer_is_required(series: Project, key: str) -> None:
    patch = series.patches[1]
    lines = patch.read_text().splitlines(keepends=True)
    patch.write_text("".join(line for line in lines if not line.startswith(f"{key}: ")))
    result = run(series, "check", "--headers")
    assert result.exit_code == 1
    assert f"0002-graph-call-b.patch has no trailer `{key}:`." in result.output


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("The toy cannot do it otherwise.\n\n", "", "says nothing about why"),
        ("Base: toy==1.0", "Base: toy==0.9", "the pin is toy==1.0"),
        ("Reason: embedding-specific", "Reason: fun", "is not one of"),
        ("Test: tests/test_toy.py", "Test: tests/test_gone.py::test_x", "does not exist"),
    ],
)
def test_header_mistakes_are_named(series: Project, old: str, new: str, complaint: str) -> None:
    patch = series.patches[0]
    assert old in patch.read_text()
    patch.write_text(patch.read_text().replace(old, new))
    result = run(series, "check", "--headers")
    assert result.exit_code == 1
    assert complaint in result.output
    assert "0002" not in result.output.partition("Error: ")[2]


def test_an_archive_replaces_the_network(series: Project, index: Path, tmp_path: Path) -> None:
    out = tmp_path / "source.tar.xz"
    assert source.tree_id(series) in succeed(series, "archive", str(out))
    first = out.read_bytes()
    succeed(series, "archive", str(out))
    assert out.read_bytes() == first
    assert sorted(tmp_path.glob(".*")) == []  # nothing half-written
    want = {name: (series.tree / name).read_bytes() for name in source.files_of(series.tree)}

    shutil.rmtree(series.cache)
    shutil.rmtree(series.tree)
    subprocess.run(["tar", "-xf", out, "-C", series.root], check=True)
    prepared = source.prepare(series, environ={})
    assert {name: (prepared.path / name).read_bytes() for name in want} == want
    assert not series.cache.exists()  # nothing was looked for


def test_bump_carries_the_series_over(series: Project, index: Path) -> None:
    moved = {**FILES, "src/llama-graph.cpp": "a new first line\n" + GRAPH, "src/new.cpp": "\n"}
    write_sdist(index / "toy-1.1.tar.gz", members(moved, "1.1"))
    succeed(series, "bump", "1.1", "--force")
    assert series.pin.requirement == "toy==1.1"
    succeed(series, "export")
    succeed(series, "check")
    graph = source.update_tree(series) / "src" / "llama-graph.cpp"
    assert graph.read_text().splitlines()[:5][-1] == "selfspec_a();"


def test_bump_says_how_to_go_on_after_a_conflict(series: Project, index: Path) -> None:
    changed = {**FILES, "src/llama-graph.cpp": GRAPH.replace("line 3\n", "line three\n")}
    write_sdist(index / "toy-1.1.tar.gz", members(changed, "1.1"))
    result = run(series, "bump", "1.1", "--force")
    assert result.exit_code == 1
    assert all(f"  {n}. " in result.output for n in (1, 2, 3))
    work = series.root / "vendor" / "work"
    (work / "src" / "llama-graph.cpp").write_text(
        GRAPH.replace("line 3\n", "line three\nselfspec_a();\n")
    )
    vendor.git(work, "add", "-u")
    vendor.git(work, "am", "--continue")
    succeed(series, "export")
    succeed(series, "check")


# --- the real project -----------------------------------------------------------------------------


def test_real_series_passes_every_check() -> None:
    """Needs git, and the network when no install has filled vendor/cache yet."""
    command = [sys.executable, str(ROOT / "tools" / "vendor.py"), "check"]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
