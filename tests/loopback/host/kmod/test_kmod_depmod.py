from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from gdsdeploy.host.audit.audit import audit
from gdsdeploy.host.errors import HostError
from gdsdeploy.host.kmod import kernel
from gdsdeploy.host.kmod.kernel import Inputs, override_line, read_dependencies, read_order, read_renames
from gdsdeploy.host.kmod.module import name_of
from tests.unit.host.kmod.kmod_elf import write_module
from tests.unit.host.kmod.kmod_root import Root, empty_lists

RELEASE = "6.12.94+deb13-amd64"
#: Every case was also put to the real depmod of kmod 30; see test_depmod_and_modprobe_themselves_agree.
CASES = [
    ("", ["updates/dkms/x.ko", "extra/x.ko", "kernel/x.ko"], "updates/dkms/x.ko"),
    ("search updates ubuntu built-in", ["ubuntu/x.ko", "updates/dkms/x.ko", "kernel/x.ko"], "updates/dkms/x.ko"),
    ("search extra updates built-in", ["updates/dkms/x.ko", "extra/x.ko"], "extra/x.ko"),
    ("search kernel updates", ["updates/dkms/x.ko", "extra/x.ko", "kernel/x.ko"], "kernel/x.ko"),
    ("search built-in updates", ["updates/x.ko", "extra/x.ko"], "extra/x.ko"),
    ("search extra\nsearch updates", ["updates/x.ko", "extra/x.ko"], "extra/x.ko"),
    (
        "search updates/gdsdeploy updates built-in",
        ["updates/dkms/x.ko", "updates/gdsdeploy/x.ko"],
        "updates/gdsdeploy/x.ko",
    ),
    # As RHEL has it, whose weak-updates are links to modules of other kernels.
    ("search updates extra built-in weak-updates", ["weak-updates/x.ko", "kernel/x.ko"], "kernel/x.ko"),
    ("search updates extra built-in weak-updates", ["weak-updates/x.ko", "extra/x.ko"], "extra/x.ko"),
    ("search updates extra weak-updates built-in", ["weak-updates/x.ko", "kernel/x.ko"], "weak-updates/x.ko"),
    ("override x * weak-updates", ["weak-updates/x.ko", "updates/x.ko"], "weak-updates/x.ko"),
    ("override x * extra", ["updates/x.ko", "extra/x.ko"], "extra/x.ko"),
    ("override x * extra", ["updates/x.ko", "extra/sub/x.ko"], "updates/x.ko"),
    ("override x * extra\noverride x * kernel", ["extra/x.ko", "kernel/x.ko"], "kernel/x.ko"),
    ("override x 9.8 extra", ["updates/x.ko", "extra/x.ko"], "updates/x.ko"),
    # The + of the release is an operator in depmod's eyes: written plainly it never matches.
    (f"override x {RELEASE} extra", ["updates/x.ko", "extra/x.ko"], "updates/x.ko"),
    (override_line("extra/x.ko", RELEASE), ["updates/x.ko", "extra/x.ko"], "extra/x.ko"),
    (
        override_line("updates/gdsdeploy/x.ko", RELEASE),
        ["updates/dkms/x.ko", "updates/gdsdeploy/x.ko"],
        "updates/gdsdeploy/x.ko",
    ),
    (override_line("extra/x.ko", "6.12.9"), ["updates/x.ko", "extra/x.ko"], "updates/x.ko"),
    # An override's name is the file's, letter by letter.
    (override_line("extra/x-y.ko", RELEASE), ["updates/x-y.ko", "extra/x-y.ko"], "extra/x-y.ko"),
    ("override x_y * extra", ["updates/x-y.ko", "extra/x-y.ko"], "updates/x-y.ko"),
    ("override x-y * extra", ["updates/x_y.ko", "extra/x_y.ko"], "updates/x_y.ko"),
    ("override x-y * extra", ["updates/x_y.ko", "extra/x-y.ko.xz"], "extra/x-y.ko.xz"),
    # Of two that name files which are there, the later one counts.
    ("override x * extra\noverride x * kernel", ["extra/x.ko", "updates/x.ko"], "extra/x.ko"),
    (
        "override x * extra\noverride x * kernel\noverride x * extra",
        ["extra/x.ko", "kernel/x.ko", "updates/x.ko"],
        "extra/x.ko",
    ),
    ("override x * extra/\n", ["updates/x.ko", "extra/x.ko"], "updates/x.ko"),
]


@pytest.mark.parametrize(("config", "files", "winner"), CASES)
def test_which_file_depmod_and_modprobe_take(tmp_path: Path, config: str, files: list[str], winner: str) -> None:
    """By our reading, and by the programs themselves."""
    root = tmp_path / "root"
    base, conf = root / "lib/modules" / RELEASE, root / "etc/depmod.d"
    conf.mkdir(parents=True)
    (conf / "a.conf").write_text(config + "\n")
    choice = read_order(Inputs(str(root)), RELEASE).choose(files)
    assert (choice.file, choice.sure) == (winner, True)
    assert sorted((choice.file, *choice.others)) == sorted(files)
    program = shutil.which("depmod", path="/usr/sbin:/sbin:/usr/bin:/bin")
    assert program, "the development machine needs kmod"
    for file in files:
        write_module(base / file, "x")
    empty_lists(base)
    subprocess.run([program, "-C", str(conf), "-b", str(root), RELEASE], check=True, capture_output=True)
    assert list(read_dependencies((base / "modules.dep").read_text())) == [winner]
    ask = [program.replace("depmod", "modprobe"), "-C", str(conf), "-d", str(root)]
    name = name_of(winner)
    shown = subprocess.run([*ask, "-S", RELEASE, "--show-depends", name], check=True, capture_output=True, text=True)
    assert shown.stdout.split() == ["insmod", str(base / winner)]


def test_equal_rank_is_decided_by_what_depmod_did_or_not_at_all(tmp_path: Path) -> None:
    order = read_order(Inputs(str(tmp_path)), RELEASE)
    files = ["updates/dkms/x.ko", "updates/gdsdeploy/x.ko"]
    assert not order.choose(files).sure
    assert order.choose(files, "updates/gdsdeploy/x.ko").file == "updates/gdsdeploy/x.ko"


def test_a_file_in_etc_hides_its_namesake_in_usr(tmp_path: Path) -> None:
    for folder, text in (("etc", "search extra\n"), ("usr/lib", "search updates\n")):
        (tmp_path / folder / "depmod.d").mkdir(parents=True)
        (tmp_path / folder / "depmod.d/a.conf").write_text(text)
    assert read_order(Inputs(str(tmp_path)), RELEASE).search == ("extra",)


def test_depmod_is_run_with_the_configuration_of_the_root(tmp_path: Path) -> None:
    """Of which a link is one inside the root."""
    base = tmp_path / "lib/modules" / RELEASE
    for file in ("updates/x.ko", "extra/x.ko"):
        write_module(base / file, "x")
    empty_lists(base)
    (tmp_path / "usr/lib/depmod.d").mkdir(parents=True)
    (tmp_path / "usr/lib/depmod.d/a.conf").symlink_to("/opt/site.conf")
    (tmp_path / "opt").mkdir()
    (tmp_path / "opt/site.conf").write_text("search extra updates\n")
    kernel.run_depmod(str(tmp_path), RELEASE, HostError, "")
    assert list(read_dependencies((base / "modules.dep").read_text())) == ["extra/x.ko"]


def test_debians_renaming_is_read_through_its_alternatives_links(tmp_path: Path) -> None:
    """The text is what Debian's nvidia-open-kernel-support installs; the link is absolute inside the root."""
    conf = tmp_path / "etc/nvidia/current-open/nvidia-modprobe.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text(
        "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n\n"
        "install nvidia-uvm modprobe nvidia ; modprobe -i nvidia-current-open-uvm $CMDLINE_OPTS\n"
        "remove nvidia modprobe -r -i nvidia-drm nvidia-modeset nvidia-peermem nvidia-uvm nvidia\n"
        "alias char-major-195* nvidia\n"
        "alias\tpci:v000010DEd*sv*sd*bc03sc02i00*\t\tnvidia\n"
    )
    (tmp_path / "etc/modprobe.d").mkdir()
    (tmp_path / "etc/modprobe.d/nvidia.conf").symlink_to("/etc/nvidia/current-open/nvidia-modprobe.conf")
    renames = {"nvidia": "nvidia_current_open", "nvidia_uvm": "nvidia_current_open_uvm"}
    assert read_renames(Inputs(str(tmp_path))) == renames


def test_install_lines_that_load_nothing_or_recurse_are_no_renaming(tmp_path: Path) -> None:
    (tmp_path / "etc/modprobe.d").mkdir(parents=True)
    (tmp_path / "etc/modprobe.d/a.conf").write_text(
        "install nouveau /bin/false\ninstall a modprobe b\nalias plain other-name\n# install c modprobe -i d\n"
    )
    assert read_renames(Inputs(str(tmp_path))) == {"plain": "other_name"}


def test_a_link_that_leads_out_of_the_root_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "etc/depmod.d").mkdir(parents=True)
    (tmp_path / "etc/depmod.d/a.conf").symlink_to("../../../../../../../../secret.conf")
    (tmp_path / "secret.conf").write_text("search inside\n")
    assert kernel.read_order(Inputs(str(tmp_path)), RELEASE).search == ("inside",)


#: (links in the kernel's folder, lines of depmod.d, files): what depmod takes is compared with what the audit takes.
LINKED = [
    ({"updates": "{root}/opt/vendor"}, "", ["opt/vendor/x.ko", "kernel/x.ko"]),
    ({"updates/dkms": "../../../../opt/vendor"}, "", ["opt/vendor/sub/x.ko", "kernel/x.ko"]),
    ({"updates/x.ko": "/gone/x.ko"}, "", ["kernel/x.ko"]),
    ({"updates/x.ko": "{root}/opt/vendor/x.ko"}, "", ["opt/vendor/x.ko", "kernel/x.ko"]),
    ({"updates": "/gone"}, "", ["kernel/x.ko"]),
    ({}, "search external updates built-in\nexternal * {root}/opt/vendor\n", ["opt/vendor/x.ko", "kernel/x.ko"]),
    ({}, "search updates external built-in\nexternal .* {root}/opt/vendor\n", ["opt/vendor/x.ko", "updates/x.ko"]),
    ({}, "search updates external built-in\nexternal * {root}/opt/vendor\n", ["opt/vendor/x.ko", "kernel/x.ko"]),
    ({}, "search external built-in\nexternal 9.9 {root}/opt/vendor\n", ["opt/vendor/x.ko", "kernel/x.ko"]),
    (
        {},
        "search external built-in\nexternal * {root}/opt/a {root}/opt/b {root}/opt/none\n",
        ["opt/b/x.ko", "opt/a/x.ko", "kernel/x.ko"],
    ),
]


@pytest.mark.parametrize(("links", "config", "files"), LINKED)
def test_links_and_folders_elsewhere_are_read_as_depmod_reads_them(
    tmp_path: Path, links: dict[str, str], config: str, files: list[str]
) -> None:
    """Absolute paths are the machine's own for depmod, and the root's own for the audit, as when that system runs."""
    root = tmp_path / "root"
    base = root / "lib/modules" / RELEASE

    def fill(place: str) -> None:
        shutil.rmtree(root, ignore_errors=True)
        base.mkdir(parents=True)
        for file in files:
            write_module((root if file.startswith("opt") else base) / file, "x")
        for name, target in links.items():
            (base / name).parent.mkdir(exist_ok=True)
            (base / name).symlink_to(target.format(root=place))
        (root / "etc/depmod.d").mkdir(parents=True)
        (root / "etc/depmod.d/a.conf").write_text(config.format(root=place))
        empty_lists(base)

    fill(str(root))
    program = shutil.which("depmod", path="/usr/sbin:/sbin:/usr/bin:/bin") or ""
    argv = [program, "-C", str(root / "etc/depmod.d"), "-b", str(root), RELEASE]
    subprocess.run(argv, check=True, capture_output=True)
    (taken,) = read_dependencies((base / "modules.dep").read_text())
    fill("")
    release = kernel.Kernel(RELEASE, str(root))
    choice = release.choose("x")
    assert choice is not None
    assert choice.file == taken.replace(str(root), "")
    assert choice.sure
    assert release.read(choice.file).name == "x"
    assert release.inputs.unread == {}


bounded = settings(
    max_examples=60,
    deadline=5000,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
#: The words of depmod.d, modprobe.d, modules.dep and modules.builtin, and of nobody.
line = st.lists(
    st.sampled_from(
        ["search", "override", "nvidia", "*", "updates", "built-in", "install", "modprobe", "-i", "alias", "(", "[",
         "\\", "kernel/fs/own.ko:", "../../..", "/etc", "#", "\x00", "é", "updates/dkms/nvidia.ko:", "-",
         "softdep", "^+*{"]
    ),
    max_size=6,
).map(" ".join)  # fmt: skip
text = st.lists(line, max_size=12).map("\n".join)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Root:
    root = Root(tmp_path_factory.mktemp("stack"))
    root.nvidia()
    root.nvidia_fs()
    return root


@bounded
@given(depmod_d=text, modprobe_d=text, dep=text, builtin=text)
def test_the_audit_of_a_root_with_any_configuration(
    stack: Root, depmod_d: str, modprobe_d: str, dep: str, builtin: str
) -> None:
    stack.etc("etc/depmod.d/a.conf", depmod_d)
    stack.etc("etc/modprobe.d/a.conf", modprobe_d)
    stack.etc(f"lib/modules/{RELEASE}/modules.dep", dep)
    stack.etc(f"lib/modules/{RELEASE}/modules.builtin", builtin)
    results = audit(kernel.Kernel(RELEASE, str(stack.path)))
    assert {result["module"] for result in results} == {"nvidia", "nvidia_fs"}


@bounded
@given(text, st.text(max_size=40))
def test_a_line_of_depmods_configuration(tmp_path: Path, config: str, release: str) -> None:
    (tmp_path / "etc/depmod.d").mkdir(parents=True, exist_ok=True)
    (tmp_path / "etc/depmod.d/a.conf").write_text(config)
    files = ["updates/dkms/x.ko", "kernel/x.ko", "extra/x.ko"]
    choice = read_order(Inputs(str(tmp_path)), release or "r").choose(files)
    assert sorted((choice.file, *choice.others)) == sorted(files)
