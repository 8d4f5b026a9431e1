"""The host program on a system of dnf's: the real dnf and rpm, above this machine's folders, in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdsdeploy.platform import stack_platform_for
from gdsdeploy.zipapp import hostapp
from tests.pins.inplace import in_place
from tests.pins.test_dnf_pins import BASE, NEWER, STACK, plugins
from tests.repos.archive import Key, Server, serve
from tests.repos.rpmarchive import RpmArchive, Stream, build

__all__ = ["plugins"]
_OURS = [rpm for rpm in STACK if rpm.version.startswith("3:")]
STREAMS = (
    Stream("nvidia-driver", "580-open", tuple(_OURS)),
    Stream("nvidia-driver", "open-dkms", tuple(rpm for rpm in NEWER if rpm.version.startswith("3:"))),
)
#: Everything that is written lands in memory, over this machine's own folders, and is gone with the namespace.
IN_PLACE = """
mkdir -p /etc/dnf/modules.d /etc/dnf/plugins /etc/yum.repos.d /var/lib/gdsdeploy
mount -t tmpfs tmpfs /var/lib/rpm
rpm --justdb --nodeps --noscripts --nosignature --install "$1"/all/*.rpm.installed
cp -r "$1/etc/." /etc/
shift
status=0; "$@" || status=$?
cd /etc
cat yum.repos.d/gdsdeploy.repo dnf/plugins/versionlock.list dnf/modules.d/nvidia-driver.module 2>/dev/null || :
exit $status
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, signing_key: Key, plugins: Path) -> Iterator[tuple[Path, Server]]:
    """A folder with the repository, what is installed, and the configuration of the host."""
    www = tmp_path_factory.mktemp("role")
    RpmArchive(build([*STACK, *NEWER, *BASE], www / "all"), streams=STREAMS).publish(signing_key)
    for rpm in [*STACK, *BASE]:
        shutil.copy(www / "all" / rpm.file, www / "all" / (rpm.file + ".installed"))
    # As [baseos]: nothing restricts it, and it offers other versions of what is locked.
    RpmArchive(build([*NEWER, *BASE], www / "baseos")).publish(None)
    (www / "key").write_text(signing_key.armoured())
    files = {
        "dnf/dnf.conf": f"[main]\npluginpath={plugins}\nmodule_platform_id=platform:el9\ngpgcheck=1\nbest=0\n",
        "dnf/plugins/versionlock.conf": "[main]\nenabled=1\nlocklist=/etc/dnf/plugins/versionlock.list\n",
        "dnf/plugins/versionlock.list": "htop-0:3.2.1-1.*\n",
        "dnf/modules.d/nvidia-driver.module": "[nvidia-driver]\nname=nvidia-driver\nstream=open-dkms\n"
        "profiles=\nstate=enabled\n",
    }
    for name, text in files.items():
        (www / "etc" / name).parent.mkdir(parents=True, exist_ok=True)
        (www / "etc" / name).write_text(text)
    with serve(www) as server:
        (www / "etc/yum.repos.d").mkdir()
        (www / "etc/yum.repos.d/baseos.repo").write_text(f"[baseos]\nname=BaseOS\nbaseurl={server.uri}/baseos\n")
        yield www, server


def document(site: tuple[Path, Server], **changed: Any) -> dict[str, Any]:
    """Repositories, pins and packages of this host; changed: by ``RESOURCE_FIELD``."""
    www, server = site
    digests = [hashlib.sha256((www / "all" / rpm.file).read_bytes()).hexdigest() for rpm in STACK]
    pins = [{"package": r.name, "version": r.version, "sha256": d} for r, d in zip(STACK, digests, strict=True)]
    key = "/etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda"
    index = {"repository": "cuda", "uri": f"{server.uri}/all", "suite": "", "components": [], "host_keyring": key}
    content = base64.b64encode((www / "key").read_bytes()).decode()
    options: dict[str, Any] = {
        "indices": [{**index, "exclusive": True}],
        "keys": [{"dest": key, "content": content}],
        "pins": pins,
        "deny": list(stack_platform_for("rhel-9").kept_out()),
        "modules": ["nvidia-driver:580-open"],
        "wanted": [{k: pin[k] for k in ("package", "version")} for pin in pins],
        **changed,
    }
    fields = {
        "repositories": ("indices", "keys", "pins"),
        "pins": ("indices", "pins", "deny", "modules"),
        "packages": ("wanted",),
    }
    resources = [
        {"resource": name, "desired": {"manager": "dnf", **{field: options[field] for field in names}}}
        for name, names in fields.items()
    ]
    return {"version": 1, "resources": resources}


#: What is asked of the program, one answer a line.
CONVERGE = """
for words in --check "" --check; do python3 "$1" apply --json --desired "$2" $words; echo; done
"""


def converge(
    site: tuple[Path, Server], tmp: Path, plugins: Path, before: str = "", after: str = "", **changed: Any
) -> tuple[list[dict[str, Any]], str]:
    """Check, apply and check a document; the answers, and the host's files afterwards.

    before, after: scripts that run then.
    """
    program = tmp / "gdsdeploy-host.pyz"
    hostapp.build(program)
    (tmp / "document").write_text(json.dumps(document(site, **changed)))
    env = {**os.environ, "HOME": str(tmp), "PYTHONPATH": str(plugins), "no_proxy": "127.0.0.1"}
    script = ["sh", "-c", f"{before}{CONVERGE}{after}\n:", "sh", program, tmp / "document"]
    argv = in_place(IN_PLACE, site[0], *script, over=("etc", "var"), processes=True)
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, timeout=240)
    lines = done.stdout.splitlines()
    answers = [json.loads(line) for line in lines if line.startswith("{")]
    assert len(answers) == 3, done.stdout + done.stderr
    return answers, "\n".join(line for line in lines if not line.startswith("{"))


def changes(answer: dict[str, Any]) -> list[str]:
    assert answer["error"] is None, answer
    assert not any(result["unknown"] for result in answer["resources"]), answer
    return [f"{e['kind']} {e['subject']}" for result in answer["resources"] for e in result["changes"]]


def test_a_host_is_pinned_and_nothing_is_to_do_the_second_time(
    site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    (checked, done, again), files = converge(site, tmp_path, plugins)
    assert changes(checked) == [
        "make /etc/pki/rpm-gpg",
        "write /etc/pki/rpm-gpg/RPM-GPG-KEY-gdsdeploy-cuda",
        "write /etc/yum.repos.d/gdsdeploy.repo",
        "write /etc/dnf/plugins/versionlock.list",
        "stream nvidia-driver:580-open",
    ]
    assert changes(done) == changes(checked)
    assert changes(again) == []
    assert "htop-0:3.2.1-1.*" in files, "locks of others stay"
    assert "libcufile-12-9-0:1.14.1.1-1.*" in files
    assert "repo_gpgcheck=1" in files
    assert "stream=580-open" in files


def test_a_version_that_is_gone_leaves_the_host_as_it_was(
    site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    pins = [{"package": "libcufile-12-9", "version": "1.14.0.9-1", "sha256": "0" * 64}]
    (_, done, _), files = converge(site, tmp_path, plugins, pins=pins)
    assert done["error"]["kind"] == "verify"
    words = "dnf would not take exactly the locked versions of: libcufile-12-9=0:1.14.0.9-1"
    assert done["error"]["message"] == words
    assert "[gdsdeploy-cuda]" not in files
    assert "gdsdeploy" not in files.partition("htop")[2]
    assert "stream=open-dkms" in files


#: One locked package isn't installed.
ERASE = "rpm --erase --justdb --nodeps libcufile-12-9\n"


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("echo 'exclude=libcufile*' >>/etc/dnf/dnf.conf", "An exclude= in /etc/dnf/dnf.conf"),
        ("sed -i 's/enabled=1/enabled=0/' /etc/dnf/plugins/versionlock.conf", "The plugin versionlock isn't at work"),
    ],
)
def test_a_setting_of_the_host_that_hides_or_unlocks_packages_is_named(
    setting: str, hint: str, site: tuple[Path, Server], tmp_path: Path, plugins: Path
) -> None:
    (_, done, _), _ = converge(site, tmp_path, plugins, before=f"{ERASE}{setting}\n")
    assert done["error"]["kind"] == "verify"
    assert "libcufile-12-9=0:1.14" in done["error"]["message"]
    assert hint in done["error"]["hint"]


def test_a_repository_that_offers_less_is_no_obstacle(site: tuple[Path, Server], tmp_path: Path, plugins: Path) -> None:
    before = f"{ERASE}echo 'excludepkgs=libcufile* kernel*' >>/etc/yum.repos.d/baseos.repo\n"
    # Unsigned packages can't be installed.
    (checked, done, again), _ = converge(site, tmp_path, plugins, before=before, wanted=[])
    assert changes(done) == changes(checked)
    assert changes(again) == []


REMOVE = """
PYTHONPATH=$1:$PYTHONPATH python3 - <<'END'
from gdsdeploy.host.apply import registry
from gdsdeploy.host.apply.host import ManagedHost
for name in ("pins", "repositories"):
    registry.resource(name).revert(ManagedHost())
END
"""


def test_what_was_configured_goes_again(site: tuple[Path, Server], tmp_path: Path, plugins: Path) -> None:
    _, files = converge(site, tmp_path, plugins, after=REMOVE)
    assert "htop-0:3.2.1-1.*" in files
    assert "gdsdeploy" not in files
    assert "stream=open-dkms" in files, "as it was before"


def test_a_module_that_had_no_stream_has_none_again(site: tuple[Path, Server], tmp_path: Path, plugins: Path) -> None:
    module = "/etc/dnf/modules.d/nvidia-driver.module"
    after = f'grep -h ^stream {module}{REMOVE}echo "left: $(ls /etc/dnf/modules.d)"\n'
    after += "dnf --quiet module list --enabled nvidia-driver 2>&1\n"
    (checked, _, _), files = converge(site, tmp_path, plugins, before=f"rm {module}\n", after=after)
    assert "stream nvidia-driver:580-open" in changes(checked)
    assert "stream=580-open\nleft: \n" in files
    assert "Error: No matching Modules to list" in files
