"""Every rule of compat.yml refuses, warns and admits what it is there for."""

from __future__ import annotations

import re

import pytest
import yaml

from gdsdeploy.lock.compat import SUBJECTS, Rule, judge, load, shipped

#: Debian 13 as it is measured to work; each case below changes some of it.
GOOD: dict[str, str | None] = {
    "driver": "550.163.01", "driver_package": "550.163.01-2", "driver_origin": "debian", "flavour": "open",
    "kernel": "6.12.94", "kernel_package": "6.12.94-1", "kernel_flavour": "amd64", "nvme_hooks": "ofed",
    "nvidia_fs": "2.19.7", "nvidia_fs_package": "2.19.7~12.4.1-2", "nvidia_fs_origin": "debian",
    "libcufile": "1.9.1.3", "cuda": "12.4.1", "doca": None, "dkms": "3.2.2",
    "dkms_signs": "not_in_chroot", "secure_boot": "off", "gpu": None, "mode": "nvidia-fs", "rdma": "none",
    "arch": "x86_64", "os": "debian-13", "family": "debian",
}  # fmt: skip

#: The driver of NVIDIA's repository, and a system of RHEL's family.
NVIDIAS = {"driver_origin": "nvidia"}
EL = {"family": "rhel", "os": "rocky-9"}

#: rule → (what it speaks against, what it admits though it looks alike); both laid over GOOD.
CASES: dict[str, tuple[list[dict[str, str]], list[dict[str, str]]]] = {
    "driver-535-pci-resize": (
        [{"driver": "535.261.03", "kernel": k} for k in ("6.1.187", "6.1.192", "6.12.107", "6.12.117", "7.2.13")],
        [{"driver": "535.261.03", "kernel": k} for k in ("6.1.176", "6.12.95", "6.6.3")]
        + [{"driver": "535.309.01", "kernel": "6.1.192"}],
    ),
    "driver-550-pci-resize": (
        [{"kernel": k} for k in ("6.12.107", "6.12.117", "6.1.192", "6.19")]
        + [{"kernel": "6.12.117", "driver_package": "550.163.01-4~bpo13+1"}],
        [{}, {"kernel": "6.1.176"}, {"kernel": "6.12.107", "driver_package": "550.163.01-5"},
         {"kernel": "6.12.107", "driver": "570.133.07", "driver_package": "570.133.07-1"}],
    ),
    "driver-580-kernel-6.17.9": (
        [{**NVIDIAS, "driver": d, "kernel": k} for d in ("580.65.06", "580.119.02") for k in ("6.17.9", "6.17.13")],
        [{**NVIDIAS, "driver": "580.119.02", "kernel": k} for k in ("6.17.4", "6.17.8", "6.18.1")]
        + [{**NVIDIAS, "driver": d, "kernel": "6.17.9"} for d in ("580.126.09", "570.211.01")]
        + [{"driver": "580.119.02", "driver_origin": maker, "kernel": "6.17.9"} for maker in ("ubuntu", "debian")],
    ),
    "driver-530-kernel-6.3": (
        [{**NVIDIAS, "driver": "530.30.02", "kernel": k} for k in ("6.3.1", "6.5.0")],
        [{**NVIDIAS, "driver": "530.41.03", "kernel": "6.3.1"}, {**NVIDIAS, "driver": "530.30.02", "kernel": "6.2.9"}],
    ),
    "driver-570-kernel-6.15": (
        [{**NVIDIAS, "driver": "570.153.02", "kernel": "6.15.1"}],
        [{**NVIDIAS, "driver": d, "kernel": k} for d, k in (("570.153.02", "6.14.9"), ("570.211.01", "6.15.1"))],
    ),
    "driver-580-kernel-7.0": (
        [{**NVIDIAS, "driver": "580.119.02", "kernel": k} for k in ("7.0.0", "7.0.9", "7.1")],
        [{**NVIDIAS, "driver": d, "kernel": "7.0.0"} for d in ("580.142", "580.173.02", "580.178.04", "595.71.05")]
        + [{**NVIDIAS, "driver": "580.119.02", "kernel": "6.19.8"}]
        + [{"driver": "580.119.02", "driver_origin": "ubuntu", "kernel": "7.0.0"}],
    ),
    "driver-590-kernel-6.19": (
        [{**NVIDIAS, "driver": d, "kernel": "6.19"} for d in ("590.44.01", "590.48.01")],
        [{**NVIDIAS, "driver": "590.48.01", "kernel": "6.18.20"}, {**NVIDIAS, "driver": "595.71.05", "kernel": "6.19"}],
    ),
    "driver-kernel-7.2": (
        [{**NVIDIAS, "driver": d, "kernel": "7.2.3"} for d in ("580.178.04", "595.84", "610.43.02", "610.43.03")],
        [{**NVIDIAS, "driver": "615.71.09", "kernel": k} for k in ("7.2.3", "7.2.5")]
        + [{**NVIDIAS, "driver": "595.84", "kernel": "7.1.10"}, {"kernel": "7.2.13"}],
    ),
    "driver-620-open-only": (
        [{"driver": "620.10.01", "flavour": "proprietary"}],
        [{"driver": "620.10.01"}, {"driver": "610.5", "flavour": "proprietary"}],
    ),
    "nvidia-fs-open-only": (
        [{"flavour": "proprietary"}, {"flavour": "proprietary", "nvidia_fs": "2.17.5"}],
        [{}, {"flavour": "proprietary", "nvidia_fs": "2.17.4"}, {"flavour": "proprietary", "arch": "aarch64"}],
    ),
    "nvidia-fs-persistent-p2p": (
        [{"nvidia_fs": "2.22.3", "driver": d} for d in ("525.89.02", "530.41.03", "535.43")],
        [{"nvidia_fs": "2.22.3", "driver": d} for d in ("525.105.17", "525.147.05", "535.43.02", "550.163.01")]
        + [{"nvidia_fs": "2.20.5", "driver": "530.41.03"}],
    ),
    "nvidia-fs-p2p-abi-580": ([{"driver": "580.65.06"}], [{"driver": "575.64.05"}]),
    "nvidia-fs-kernel-6.1": (
        [{"nvidia_fs": "2.16.1", "nvidia_fs_origin": "nvidia", "kernel": "6.1.176"}],
        [{"nvidia_fs": "2.13.5", "kernel": "6.1.176"},
         {"nvidia_fs": "2.17.0", "nvidia_fs_origin": "nvidia", "kernel": "6.1.176"},
         {"nvidia_fs": "2.16.1", "nvidia_fs_origin": "nvidia", "kernel": "5.15.0"}],
    ),
    "nvidia-fs-vm-flags": (
        [{"nvidia_fs": v, "nvidia_fs_origin": "nvidia", "kernel": "6.12.95"} for v in ("2.17.5", "2.18.3")],
        [{"nvidia_fs": "2.18.3", "nvidia_fs_origin": "nvidia", "kernel": "6.1.176"}],
    ),
    "nvidia-fs-unsigned-offset": (
        [{"nvidia_fs": v, "nvidia_fs_origin": "nvidia", "kernel": "6.12.95"} for v in ("2.19.7", "2.22.3", "2.24.2")],
        [{}, {"nvidia_fs": "2.24.2", "nvidia_fs_origin": "nvidia", "kernel": "6.1.176"},
         {"nvidia_fs": "2.25.7", "nvidia_fs_origin": "nvidia", "kernel": "6.12.95"}],
    ),
    "nvidia-fs-2.25.6": ([{"nvidia_fs": "2.25.6"}], [{"nvidia_fs": "2.25.7"}]),
    "nvidia-fs-kernel-6.17": (
        [{"kernel": "6.17.1", "nvidia_fs": "2.27.3", "nvidia_fs_origin": "nvidia"}],
        [{"kernel": "6.17.1", "nvidia_fs": "2.28.2", "nvidia_fs_origin": "nvidia"},
         {"kernel": "6.16.9", "nvidia_fs": "2.27.3", "nvidia_fs_origin": "nvidia"},
         {"kernel": "6.17.1", "nvidia_fs": "2.27.3", "nvidia_fs_origin": "ubuntu"}],
    ),
    "nvidia-fs-kernel-6.16": (
        [{"kernel": "6.16.1", "nvidia_fs": v, "nvidia_fs_origin": "nvidia"} for v in ("2.26.6", "2.27.3")],
        [{"kernel": "6.16.1", "nvidia_fs": "2.28.2", "nvidia_fs_origin": "nvidia"},
         {"kernel": "6.15.11", "nvidia_fs": "2.27.3", "nvidia_fs_origin": "nvidia"},
         {"kernel": "6.17.1", "nvidia_fs": "2.27.3", "nvidia_fs_origin": "nvidia"},
         *({"kernel": "6.16.1", "nvidia_fs": "2.27.3", "nvidia_fs_origin": maker} for maker in ("debian", "ubuntu"))],
    ),
    "nvidia-fs-kernel-6.18": (
        [{"kernel": k, "nvidia_fs": v, "nvidia_fs_origin": "nvidia"}
         for k in ("6.18", "6.18.8", "7.0.0", "7.2.5") for v in ("2.28.2", "2.28.4")],
        [{"kernel": k, "nvidia_fs": "2.29.4", "nvidia_fs_origin": "nvidia"} for k in ("6.18", "7.1.10")]
        + [{"kernel": "6.17.13", "nvidia_fs": "2.28.4", "nvidia_fs_origin": "nvidia"}]
        + [{"kernel": "6.18", "nvidia_fs": "2.28.4", "nvidia_fs_origin": "ubuntu"}],
    ),
    "nvidia-fs-kernel-7.2": (
        [{"kernel": "7.2.3", "nvidia_fs": "2.29.4", "nvidia_fs_origin": "nvidia"}],
        [{"kernel": "7.1.10", "nvidia_fs": "2.29.4", "nvidia_fs_origin": "nvidia"},
         {"kernel": "7.2.3", "nvidia_fs": "2.30.1", "nvidia_fs_origin": "nvidia"}],
    ),
    "debian-nvidia-fs-2.13": (
        [{"nvidia_fs": "2.13.5", "kernel": "6.12.117"}],
        [{"nvidia_fs": "2.13.5", "kernel": "6.1.192"}],
    ),
    "debian-nvidia-fs-2.19": (
        [{"kernel": "6.15"}],
        [{}, {"kernel": "6.14.2"}, {"kernel": "7.2.13", "nvidia_fs_package": "2.19.7~12.4.1-8.2+b1"}],
    ),
    "nvidia-fs-vm-io": ([{}, {"kernel": "6.6.63"}], [{"kernel": "6.1.176"}, {"nvidia_fs": "2.26.6"}]),
    "nvidia-fs-sgl-hang": ([{"kernel": "6.17"}], [{}]),
    "libcufile-nvidia-fs-minimum": ([{"nvidia_fs": "2.7.49"}], [{"nvidia_fs": "2.12.4"}]),
    "cuda-11-driver": ([{"cuda": "11.8.0", "driver": "450.51"}], [{"cuda": "11.8.0", "driver": "450.80.02"}]),
    "cuda-12-driver": ([{"driver": "525.53"}], [{"driver": "525.60.13"}, {"cuda": "11.8.0", "driver": "525.53"}]),
    "cuda-13-driver": ([{"cuda": "13.0.1"}], [{"cuda": "13.0.1", "driver": "580.65.06"}]),
    "p2pdma-driver": (
        [{"mode": "p2pdma"}, {"mode": "p2pdma", "driver": "570.1", "flavour": "proprietary"}],
        [{"mode": "p2pdma", "driver": "565.57.01"}, {}],
    ),
    "p2pdma-libcufile": ([{"mode": "p2pdma"}], [{"mode": "p2pdma", "libcufile": "1.13.0.11"}]),
    "p2pdma-grace": (
        [{"mode": "p2pdma", "arch": "aarch64", "gpu": gpu} for gpu in ("ampere", "hopper")],
        [{"mode": "p2pdma", "arch": "aarch64", "gpu": gpu} for gpu in ("grace-hopper", "blackwell")]
        + [{"mode": "p2pdma", "arch": "aarch64"}, {"mode": "p2pdma", "gpu": "ampere"}]
        + [{"arch": "aarch64", "gpu": "ada"}],
    ),
    "p2pdma-driver-595": (
        [{"mode": "p2pdma", "driver": driver} for driver in ("570.211.01", "580.178.04", "590.48.01")],
        [{"mode": "p2pdma", "driver": "595.71.05"}, {"driver": "580.178.04"}],
    ),
    "p2pdma-driver-590": (
        [{"mode": "p2pdma", "driver": "590.48.01", "kernel": k} for k in ("6.17.0", "6.18.8")],
        [{"mode": "p2pdma", "driver": d, "kernel": k} for d, k in (("590.48.01", "6.16.9"), ("595.71.05", "6.18.8"))],
    ),
    "p2pdma-kernel": (
        [{"mode": "p2pdma", "kernel": "6.1.176"}],
        [{"mode": "p2pdma", "kernel": "6.2"}, {"mode": "p2pdma", "kernel": "5.14.0", "family": "rhel"}],
    ),
    "p2pdma-debian-kernel": (
        [{"mode": "p2pdma"}, {"mode": "p2pdma", "kernel": "6.1.192"}],
        [{"mode": "p2pdma", "kernel": "7.2.13"}, {"mode": "p2pdma", "family": "ubuntu"}],
    ),
    "dmabuf-open-driver": ([{"rdma": "dmabuf", "flavour": "proprietary"}], [{"rdma": "dmabuf"}]),
    "dmabuf-kernel": ([{"rdma": "dmabuf", "kernel": "5.10.1"}], [{"rdma": "dmabuf"}]),
    "nvidia-fs-peermem": (
        [{"rdma": "peermem", "nvidia_fs": "2.7.49"}],
        [{"rdma": "peermem", "nvidia_fs": "2.9.4"}, {"nvidia_fs": "2.7.49"}],
    ),
    "nvidia-fs-rdma-4-gib": (
        [{"rdma": r, "nvidia_fs": "2.28.2"} for r in ("peermem", "dmabuf")],
        [{"rdma": "peermem", "nvidia_fs": "2.28.4"}, {"nvidia_fs": "2.28.2"}],
    ),
    "nvidia-fs-kernel-4.15": ([{"kernel": "4.4.0"}], [{"kernel": "4.15.0"}]),
    "libcufile-driver-535": (
        [{"libcufile": "1.15.1.6", "driver": "525.147.05"}],
        [{"libcufile": "1.15.1.6", "driver": "535.54.03"}, {"driver": "525.147.05"}],
    ),
    "dmabuf-cuda": ([{"rdma": "dmabuf", "libcufile": "1.2.1.4"}], [{"rdma": "dmabuf"}, {"libcufile": "1.2.1.4"}]),
    "dmabuf-gpu": ([{"rdma": "dmabuf", "gpu": "volta"}], [{"rdma": "dmabuf", "gpu": "turing"}, {"gpu": "volta"}]),
    "p2pdma-gpu": (
        [{"mode": "p2pdma", "gpu": "turing"}],
        [{"mode": "p2pdma", "gpu": "hopper"}, {"mode": "p2pdma"}, {"gpu": "turing"}],
    ),
    "p2pdma-rhel-9.5": (
        [{"mode": "p2pdma", "family": "rhel", "kernel_package": "5.14.0-503.11.1.el9_5"}],
        [{"mode": "p2pdma", "family": "rhel", "kernel_package": v} for v in ("5.14.0-427.13.1.el9_4", "5.14.0-570.el9")]
        + [{"family": "rhel", "kernel_package": "5.14.0-503.11.1.el9_5"}]
        + [{"mode": "p2pdma", "family": "rhel", "kernel_package": "5.14.0-503.11.1.el9_5", "arch": "aarch64"}],
    ),
    "p2pdma-rhel-kernel": (
        [{"mode": "p2pdma", "family": "rhel", "kernel_package": v} for v in ("5.14.0-362.8.1.el9_3", "4.18.0-553.el8")],
        [{"mode": "p2pdma", "family": "rhel", "kernel_package": v} for v in ("5.14.0-427.13.1.el9_4", "6.12.0-55.el10")]
        + [{"mode": "p2pdma", "kernel_package": "5.14.0-1"}],
    ),
    "p2pdma-uek": (
        [{"mode": "p2pdma", "kernel_flavour": "uek", "kernel": "5.15.0-310.184.5.2"}],
        [{"mode": "p2pdma", "kernel_flavour": "uek", "kernel": "6.12.0-100.28.2"},
         {"mode": "p2pdma", "kernel_flavour": "kernel", "kernel": "5.14.0-570"},
         {"kernel_flavour": "uek", "kernel": "5.15.0-310.184.5.2"}],
    ),
    "gpu-open-driver": (
        [{"gpu": "volta"}],
        [{"gpu": "turing"}, {"gpu": "volta", "flavour": "proprietary"}, {}],
    ),
    "gpu-open-driver-only": (
        [{"gpu": g, "flavour": "proprietary"} for g in ("blackwell", "grace-hopper")],
        [{"gpu": "blackwell"}, {"gpu": "hopper", "flavour": "proprietary"}],
    ),
    "gpu-libcufile-1.15": (
        [{"gpu": "pascal", "libcufile": "1.15.0.42"}],
        [{"gpu": "pascal"}, {"gpu": "turing", "libcufile": "1.15.0.42"}],
    ),
    "gpu-libcufile-compute-6": ([{"gpu": "maxwell"}], [{"gpu": "pascal"}]),
    "doca-kernel-6.17": (
        [{"doca": "3.2.1", "kernel": "6.17.1"}, {"doca": "3.2.1", "kernel": "6.18.2"}],
        [{"doca": "3.3.0", "kernel": "6.17.1"}, {"doca": "3.2.1"}, {"kernel": "6.17.1"},
         {"doca": "3.2.1", "kernel": "6.17.1", "mode": "p2pdma"},
         {"doca": "3.2.1", "kernel": "6.17.0", "nvme_hooks": "kernel"}],
    ),
    "doca-3.3.0": (
        [{"doca": "3.3.0"}, {"doca": "3.3.0-087000"}, {"doca": "3.3.1"}],
        [{"doca": "3.4.0"}, {"doca": "3.2.1"}, {"doca": "3.3.0", "kernel": "6.17.1"},
         {"doca": "3.3.0", "nvme_hooks": "kernel"}],
    ),
    "doca-linux-nvidia": (
        [{"doca": "3.2.1", "kernel_flavour": flavour} for flavour in ("nvidia", "nvidia-64k")],
        [{"doca": "3.2.1"}, {"kernel_flavour": "nvidia"}, {"doca": "3.2.1", "kernel_flavour": "azure"},
         {"doca": "3.2.1", "kernel_flavour": "nvidia", "nvme_hooks": "kernel"},
         {"doca": "3.2.1", "kernel_flavour": "nvidia", "mode": "p2pdma"}],
    ),
    "doca-3.2-rhel-9.8": (
        [{**EL, "doca": "3.2.3", "kernel_package": "5.14.0-687.42.1.el9_8"}],
        [{**EL, "doca": "3.3.0", "kernel_package": "5.14.0-687.42.1.el9_8"},
         {**EL, "doca": "3.2.3", "kernel_package": "5.14.0-570.73.1.el9_6"},
         {"doca": "3.2.3", "kernel_package": "5.14.0-687.42.1.el9_8"}],
    ),
    "doca-ubuntu-24.04": (
        [{"os": "ubuntu-24.04", "doca": "3.0.0"}],
        [{"os": "ubuntu-24.04", "doca": "3.1.0"}, {"os": "ubuntu-22.04", "doca": "3.0.0"}, {"os": "ubuntu-24.04"}],
    ),
    "doca-ubuntu-26.04": (
        [{"os": "ubuntu-26.04", "doca": "3.4.0"}],
        [{"os": "ubuntu-26.04", "doca": "3.4.1"}, {"os": "ubuntu-24.04", "doca": "3.4.0"}],
    ),
    "doca-rhel-9.6": (
        [{**EL, "doca": "3.0.0", "kernel_package": k}
         for k in ("5.14.0-570.73.1.el9_6", "5.14.0-611.5.1.el9_7", "6.12.0-55.9.1.el10_0")],
        [{**EL, "doca": "3.1.0", "kernel_package": "5.14.0-570.73.1.el9_6"},
         {**EL, "doca": "3.0.0", "kernel_package": "5.14.0-503.40.1.el9_5"}],
    ),
    "doca-rhel-10.2": (
        [{**EL, "doca": "3.4.0", "kernel_package": "6.12.0-211.4.el10_2"}],
        [{**EL, "doca": "3.4.1", "kernel_package": "6.12.0-211.4.el10_2"},
         {**EL, "doca": "3.4.0", "kernel_package": "6.12.0-124.20.1.el10_1"}],
    ),
    "kernel-7.0.0-1019-nvidia": (
        [{"rdma": r, "kernel_flavour": "nvidia", "kernel_package": k}
         for r in ("peermem", "dmabuf") for k in ("7.0.0-1019.19~24.04.2", "7.0.0-1019-nvidia")],
        [{"kernel_flavour": "nvidia", "kernel_package": "7.0.0-1019.19"},
         {"rdma": "dmabuf", "kernel_flavour": "nvidia", "kernel_package": "6.17.0-1032.32"},
         {"rdma": "dmabuf", "kernel_flavour": "nvidia", "kernel_package": "7.0.0-1020.20"},
         {"rdma": "dmabuf", "kernel_flavour": "aws", "kernel_package": "7.0.0-1019.19"}],
    ),
    "dkms-rhel-driver": (
        [{**EL, "driver": "575.51.03", "driver_package": "3:575.51.03-1.el9", "dkms": "3.1.7"}],
        [{**EL, "driver": "575.51.03", "driver_package": "3:575.51.03-1.el9", "dkms": "3.1.8"},
         {**EL, "driver": "570.211.01", "dkms": "3.1.7"},
         {**EL, "driver": "580.95.05", "dkms": "3.1.7", "flavour": "proprietary"},
         {"driver": "580.95.05", "dkms": "3.0.11"}],
    ),
    "dkms-rhel-10-folder": (
        [{**EL, "os": "rhel-10", "dkms": d} for d in ("3.3.0", "3.4.1")],
        [{**EL, "os": "rhel-10", "dkms": "3.4.2"}, {**EL, "os": "rocky-10", "dkms": "3.4.1"}],
    ),
    "dkms-unsigned": (
        [{"secure_boot": "on", "dkms": "3.4.0"}, {"secure_boot": "on", "dkms": "3.4.3"}],
        [{"secure_boot": "on"}, {"dkms": "3.4.3"}, {"secure_boot": "on", "dkms": "3.4.3", "dkms_signs": "true"}],
    ),
    **{
        f"gds-{gds}-nvidia-fs": (
            [{"libcufile": f"{gds}.0.1", "nvidia_fs": older}],
            [{"libcufile": f"{gds}.0.1", "nvidia_fs": same}, {"libcufile": "99.1", "nvidia_fs": older}],
        )
        for gds, older, same in (
            ("1.3", "2.12.3", "2.12.4"), ("1.4", "2.12.4", "2.13.5"), ("1.5", "2.13.5", "2.14.12"),
            ("1.6", "2.14.13", "2.15.3"), ("1.7", "2.15.3", "2.17.5"), ("1.8", "2.17.5", "2.18.3"),
            ("1.9", "2.18.3", "2.25.7"), ("1.10", "2.19.7", "2.20.5"), ("1.11", "2.20.5", "2.22.3"),
            ("1.12", "2.22.3", "2.23.1"), ("1.13", "2.23.1", "2.24.2"), ("1.14", "2.24.2", "2.25.7"),
            ("1.15", "2.25.7", "2.26.6"), ("1.16", "2.26.6", "2.27.3"), ("1.17", "2.27.3", "2.28.2"),
            ("1.18", "2.28.4", "2.29.4"), ("1.19", "2.29.4", "2.30.1"), ("1.20", "2.29.4", "2.30.1"),
        )
    },
    **{
        f"cuda-{cuda}-driver": (
            [{"cuda": f"{cuda}.1", "driver": older}],
            [{"cuda": f"{cuda}.1", "driver": same}, {"cuda": "99.1", "driver": older}],
        )
        for cuda, older, same in (
            ("11.4", "470.41", "470.42.01"), ("11.5", "495.29.04", "495.29.05"), ("11.6", "510.39", "510.39.01"),
            ("11.7", "515.43.03", "515.43.04"), ("11.8", "515.43.04", "520.61.05"), ("12.1", "525.60.13", "530.30.02"),
            ("12.2", "530.30.02", "535.54.03"), ("12.3", "535.54.03", "545.23.06"), ("12.4", "545.23.06", "550.163.01"),
            ("12.5", "550.163.01", "555.42.02"), ("12.6", "555.42.06", "560.28.03"), ("12.8", "565.57.01", "570.26"),
            ("12.9", "570.26", "575.51.03"), ("13.1", "580.65.06", "590.44.01"),
            ("13.2", "590.48.01", "595.71.05"), ("13.3", "595.84", "610.43.03"), ("13.4", "610.43.03", "615.71.09"),
        )
    },
}  # fmt: skip


def against(rule: str, change: dict[str, str]) -> bool:
    """Whether the rule refuses the changed combination, or warns of it."""
    verdicts = {v.rule: v for v in judge({**GOOD, **change})}
    return rule in verdicts and (not verdicts[rule].allowed or verdicts[rule].warning)


def test_every_rule_has_its_cases() -> None:
    assert {rule.id for rule in shipped()} == set(CASES)


@pytest.mark.parametrize("rule", CASES)
def test_a_rule_speaks_against_what_it_is_for_and_nothing_else(rule: str) -> None:
    bad, good = CASES[rule]
    assert [change for change in bad if not against(rule, change)] == []
    assert [change for change in good if against(rule, change)] == []


def test_the_measured_combinations_are_admitted() -> None:
    bookworm = {
        "driver": "535.261.03", "driver_package": "535.261.03-1", "kernel": "6.1.176", "kernel_package": "6.1.176-1",
        "nvidia_fs": "2.13.5", "nvidia_fs_package": "2.13.5~11.8.0-5~deb12u1", "libcufile": "1.4.0.31",
        "cuda": "11.8.0", "os": "debian-12",
    }  # fmt: skip
    assert [v.rule for v in judge(GOOD) if not v.allowed] == []
    assert [v.rule for v in judge({**GOOD, **bookworm}) if not v.allowed] == []


def test_only_warnings_are_warnings() -> None:
    kinds = {v.rule: v for change in ({}, {"driver": "580.65.06", "kernel": "6.17"}) for v in judge({**GOOD, **change})}
    assert {name for name, v in kinds.items() if v.warning} == {
        "nvidia-fs-p2p-abi-580",
        "nvidia-fs-vm-io",
        "nvidia-fs-sgl-hang",
    }
    assert all(v.allowed for v in kinds.values() if v.warning)


def test_what_is_not_decided_yet_is_not_judged() -> None:
    assert judge({"driver": "550.163.01", "driver_package": "550.163.01-2"}) == []
    (verdict,) = judge({"driver": "550.163.01", "driver_package": "550.163.01-2", "kernel": "6.12.107"}, [
        rule for rule in shipped() if rule.id == "driver-550-pci-resize"
    ])  # fmt: skip
    assert not verdict.allowed


def test_an_absent_part_breaks_no_rule() -> None:
    compat = dict.fromkeys(("nvidia_fs", "nvidia_fs_package", "nvidia_fs_origin"))
    verdicts = judge({**GOOD, **compat, "mode": "compat", "flavour": "proprietary"})
    assert all(v.allowed for v in verdicts)
    assert not {v.rule for v in verdicts if "nvidia-fs" in v.rule}


def test_words_say_what_the_rule_says_and_what_was_found() -> None:
    (verdict,) = [v for v in judge({**GOOD, "kernel": "6.12.107"}) if not v.allowed]
    assert verdict.words.startswith("Driver 550.163.01 as packaged does not compile on kernels")
    assert verdict.words.endswith("kernel 6.12.107.")


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.id)
def test_every_rule_is_one_sentence_with_a_source(rule: Rule) -> None:
    assert re.fullmatch(r"[A-Za-z][^\n]*\.", rule.says)
    assert "\n" not in rule.source.strip()
    assert len(rule.source) > 15
    assert rule.looks_at <= set(SUBJECTS)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"needs": {"drivr": ">=1"}}, "there is no subject 'drivr'"),
        ({"needs": {"driver": ">=x"}}, "not a version expression"),
        ({"needs": {}}, "exactly one of needs, refuses and warns"),
        ({"refuses": {"driver": "1"}}, "exactly one of needs, refuses and warns"),
        ({"because": "x"}, "Extra inputs"),
        ({"known": "heard"}, "measured"),
    ],
)
def test_a_malformed_rule_is_refused(change: dict[str, object], words: str) -> None:
    rule = {"id": "x-1", "says": "X.", "known": "measured", "source": "here", "needs": {"driver": ">=1"}, **change}
    with pytest.raises(ValueError, match=words):
        load(yaml.safe_dump({"rules": [rule]}))


def test_an_id_is_given_once() -> None:
    rule = {"id": "x-1", "says": "X.", "known": "measured", "source": "here", "needs": {"driver": ">=1"}}
    with pytest.raises(ValueError, match="x-1 is given twice"):
        load(yaml.safe_dump({"rules": [rule, rule]}))
