"""Work on the llama.cpp patch series: fetch, apply, edit, export, check, bump, archive.

A patch is never edited by hand: it is a commit in vendor/work/, a local git repository with one
base commit (the pinned source), and patches/ is what `export` writes from it.
Needs git, except for `check --headers`. Installing the package does not use this file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "vendor"))
sys.path.append(str(Path(__file__).resolve().parents[1]))

import source
from source import Pin, Project, SourceError
from tools.patch_headers import header_problems, table, with_base

BASE_REF = "refs/pyselfspec/base"

# Fixed, so that the base commit and the commits of the series have the same hash everywhere.
IDENTITY = {
    "GIT_AUTHOR_NAME": "pyselfspec",
    "GIT_AUTHOR_EMAIL": "pyselfspec@localhost",
    "GIT_AUTHOR_DATE": "2000-01-01T00:00:00Z",
    "GIT_COMMITTER_NAME": "pyselfspec",
    "GIT_COMMITTER_EMAIL": "pyselfspec@localhost",
    "GIT_COMMITTER_DATE": "2000-01-01T00:00:00Z",
}
COMMITTER = {key: value for key, value in IDENTITY.items() if key.startswith("GIT_COMMITTER_")}


class GitError(Exception):
    """git stopped; the text is what it said."""


# --- git ------------------------------------------------------------------------------------------


def git(repo: Path, *arguments: str, identity: dict[str, str] = COMMITTER) -> str:
    """Run git in `repo`, untouched by personal settings, and return what it prints."""
    own = {name: text for name, text in os.environ.items() if not name.startswith("GIT_")}
    env = {**own, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", **identity}
    # Line ends as they are, renames always shown the same way: the output must repeat.
    fixed = ("-c", "core.autocrlf=false", "-c", "diff.renames=true")
    result = subprocess.run(
        ["git", *fixed, *arguments], cwd=repo, env=env, capture_output=True, text=True, check=False
    )
    if result.returncode != 0:
        raise GitError((result.stdout + result.stderr).strip())
    return result.stdout.strip()


def write_base(repo: Path, pin: Pin) -> None:
    """Commit the files in `repo` as a base commit without parent, and start from it."""
    if not (repo / ".git").is_dir():
        git(repo, "init", "--quiet", "--initial-branch=series")
    git(repo, "add", "--all", "--force")
    tree = git(repo, "write-tree")
    message = f"{pin.requirement}: {pin.folder}"
    commit = git(repo, "commit-tree", tree, "-m", message, identity=IDENTITY)
    git(repo, "update-ref", BASE_REF, commit)
    git(repo, "reset", "--quiet", "--hard", commit)


def series_of(repo: Path) -> list[str]:
    """Commits of the series, oldest first."""
    return git(repo, "rev-list", "--reverse", f"{BASE_REF}..HEAD").split()


def am(repo: Path, patches: Iterable[Path]) -> None:
    """One commit per patch; raises GitError at the first that does not fit."""
    if files := [str(patch.resolve()) for patch in patches]:
        # --keep-non-patch: a subject may contain brackets of its own.
        flags = ("--quiet", "--3way", "--keep-non-patch", "--committer-date-is-author-date")
        git(repo, "am", *flags, *files)


def format_series(repo: Path, pin: Pin, folder: Path) -> list[Path]:
    """Write the series as patch files to `folder`, with the Base trailer filled in."""
    git(
        repo,
        "format-patch",
        "--quiet",
        "--zero-commit",  # the hash of a commit says nothing to a reader and changes each time
        "--no-signature",  # nor does the version of git
        "--no-numbered",  # a new patch must not change the subject of the others
        "--full-index",  # the length of an abbreviated hash varies
        "--no-stat",
        f"--output-directory={folder}",
        f"{BASE_REF}..HEAD",
    )
    written = sorted(folder.glob("*.patch"))
    for file in written:
        file.write_bytes(with_base(file.read_bytes(), pin.requirement))
    return written


# --- the whole series -----------------------------------------------------------------------------


def unpack(project: Project, target: Path) -> None:
    """The pinned source without patches."""
    source.unpack_pin(source.fetch_sdist(project), project.pin, target)


def write_archive(project: Project, out: Path) -> None:
    """The patched tree with its stamp as .tar.xz, the same bytes for the same tree."""
    tree = source.update_tree(project)
    unfinished = out.with_name(f".{out.name}.unfinished")
    try:
        with tarfile.open(unfinished, "w:xz") as archive:
            for name in (*source.files_of(tree), Path(source.STAMP)):
                member = archive.gettarinfo(
                    str(tree / name), str(tree.relative_to(project.root) / name)
                )
                member.uid = member.gid = member.mtime = 0
                member.uname = member.gname = ""
                member.mode = 0o644
                with (tree / name).open("rb") as file:
                    archive.addfile(member, file)
        os.replace(unfinished, out)
    finally:
        unfinished.unlink(missing_ok=True)


def differences(one: Path, other: Path) -> list[str]:
    """Names of files that are missing on one side or differ."""
    names = set(source.files_of(one)) | set(source.files_of(other))

    def content(tree: Path, name: Path) -> bytes | None:
        return (tree / name).read_bytes() if (tree / name).is_file() else None

    return sorted(str(name) for name in names if content(one, name) != content(other, name))


def series_problems(project: Project) -> list[str]:
    """Apply and export the series in a temporary repository, and apply it as an install does."""
    pin, patches = project.pin, project.patches
    with tempfile.TemporaryDirectory(prefix="pyselfspec-") as folder:
        repo, plain, exported = (Path(folder, name) for name in ("repo", "plain", "exported"))
        unpack(project, plain)
        shutil.copytree(plain, repo)
        write_base(repo, pin)
        try:
            am(repo, patches)
        except GitError as error:
            return [f"The series does not apply with git: {error}"]
        source.apply_patches(patches, plain)
        again = format_series(repo, pin, exported)
        problems = [
            f"{name} is not what git gives: what an install builds would differ."
            for name in differences(repo, plain)
        ]
        old, new = ({p.name: p.read_bytes() for p in files} for files in (patches, again))
        problems += [
            f"patches/{name} differs from a fresh export: run `apply` and `export`."
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name)
        ]
        return problems


# --- commands -------------------------------------------------------------------------------------


@contextmanager
def one_line_errors() -> Iterator[None]:
    """An error of the user's, shown without a traceback."""
    try:
        yield
    except (SourceError, GitError) as error:
        raise click.ClickException(str(error)) from None


def work_of(project: Project) -> Path:
    """The work repository; an error when there is none."""
    work = project.root / "vendor" / "work"
    if not (work / ".git").is_dir():
        raise click.ClickException("There is no vendor/work: run `python tools/vendor.py fetch`.")
    return work


def new_work(project: Project, force: bool) -> Path:
    """vendor/work with the base commit of the pin; work that is there is only lost when forced."""
    work = project.root / "vendor" / "work"
    if work.exists() and not force:
        raise click.ClickException(
            "vendor/work exists: export what you want to keep, then repeat with --force."
        )
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    unpack(project, work)
    write_base(work, project.pin)
    return work


force_option = click.option("--force", is_flag=True, help="Throw away an existing vendor/work.")


def stopped(error: GitError, command: str) -> click.ClickException:
    """The three commands that lead out of a conflict."""
    return click.ClickException(
        f"{error}\n\nThe series stops here. In vendor/work:\n"
        "  1. resolve the conflict in the files that `git status` names, then `git add -u`\n"
        f"  2. git {command} --continue\n"
        "Then in the top folder:\n"
        "  3. python tools/vendor.py export"
    )


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--root", type=click.Path(path_type=Path, file_okay=False), hidden=True)
@click.pass_context
def main(context: click.Context, root: Path | None) -> None:
    """Work on the llama.cpp patch series (patches/) in the repository vendor/work."""
    context.obj = Project(root or Path(__file__).resolve().parent.parent)
    context.with_resource(one_line_errors())


@main.command()
@force_option
@click.pass_obj
def fetch(project: Project, force: bool) -> None:
    """Unpack the pinned source into vendor/work as one base commit."""
    new_work(project, force)
    click.echo(f"vendor/work holds {project.pin.requirement}, without patches.")


@main.command()
@click.pass_obj
def apply(project: Project) -> None:
    """Put patches/ on top of the base, one commit per patch."""
    work = work_of(project)
    if series_of(work):
        raise click.ClickException("vendor/work has commits already: `fetch --force` starts anew.")
    try:
        am(work, project.patches)
    except GitError as error:
        raise stopped(error, "am") from None
    click.echo(f"{len(project.patches)} patches applied in vendor/work.")


@main.command()
@click.argument("number", type=click.IntRange(min=1))
@click.pass_obj
def edit(project: Project, number: int) -> None:
    """Fold the changes in vendor/work into patch NUMBER."""
    work = work_of(project)
    series = series_of(work)
    if number > len(series):
        raise click.BadParameter(f"the series has {len(series)} patches.", param_hint="NUMBER")
    git(work, "add", "--all")
    if not git(work, "status", "--porcelain"):
        raise click.ClickException("Nothing has changed in vendor/work.")
    git(work, "commit", "--quiet", f"--fixup={series[number - 1]}", identity=IDENTITY)
    try:
        # `:` as the editor accepts the order that --autosquash proposes.
        git(work, "-c", "sequence.editor=:", "rebase", "-i", "--autosquash", "--quiet", BASE_REF)
    except GitError as error:
        raise stopped(error, "rebase") from None
    click.echo(f"Patch {number} changed in vendor/work. Next: python tools/vendor.py export")


@main.command()
@click.pass_obj
def export(project: Project) -> None:
    """Write the commits in vendor/work to patches/, in place of the old files."""
    work = work_of(project)
    if git(work, "status", "--porcelain", "--untracked-files=no"):
        raise click.ClickException("vendor/work has changes: commit them, or use `edit NUMBER`.")
    folder = project.root / "patches"
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".export-") as temporary:
        written = format_series(work, project.pin, Path(temporary))
        for old in project.patches:
            if old.name not in {new.name for new in written}:
                old.unlink()
        for new in written:
            os.replace(new, folder / new.name)
    click.echo(f"{len(project.patches)} patches written.")


@main.command()
@click.option("--headers", is_flag=True, help="Headers only: no download, no git.")
@click.pass_obj
def check(project: Project, headers: bool) -> None:
    """Check headers, clean application, and that an export changes nothing."""
    problems = [text for patch in project.patches for text in header_problems(project, patch)]
    if not headers:
        problems += series_problems(project)
    click.echo(table(project.patches))
    if problems:
        raise click.ClickException("\n".join(problems))


@main.command()
@click.argument("out", type=click.Path(path_type=Path, dir_okay=False))
@click.pass_obj
def archive(project: Project, out: Path) -> None:
    """Write the patched source to OUT (.tar.xz), for installs without a network.

    Unpacked in the top folder of a checkout with the same pin and patches, nothing is downloaded.
    """
    write_archive(project, out)
    click.echo(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {source.tree_id(project)}")


@main.command()
@click.argument("version")
@force_option
@click.pass_obj
def bump(project: Project, version: str, force: bool) -> None:
    """Move the pin to VERSION of the source distribution, and the series with it."""
    # The old tree and series come first: a three-way merge needs the files they were made of.
    work = new_work(project, force)
    am(work, project.patches)
    move_pin(project, version)
    for file in list(source.files_of(work)):
        (work / file).unlink()
    unpack(project, work)
    write_base(work, project.pin)
    click.echo(f"The pin is {project.pin.requirement}. Read what its llama.cpp changed.")
    try:
        am(work, project.patches)
    except GitError as error:
        raise stopped(error, "am") from None
    click.echo("The series applies. Next: python tools/vendor.py export, build, test.")


def move_pin(project: Project, version: str) -> None:
    """Write version and hash to pin.toml."""
    old = project.pin
    requirement = f"{old.name}=={version}"
    with tempfile.TemporaryDirectory(prefix="pyselfspec-") as folder:
        sha256 = source.sha256_of(source.download(requirement, Path(folder)))
    text = project.pin_file.read_text(encoding="utf-8")
    text = text.replace(f'"{old.version}"', f'"{version}"').replace(old.sha256, sha256)
    temporary = project.pin_file.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, project.pin_file)


if __name__ == "__main__":
    main()
